"""Commands in the process of a test."""

from __future__ import annotations

from inspect import signature
from typing import Any

from click.testing import CliRunner


def runner() -> CliRunner:
    """A runner whose results have standard output and standard error apart; click 8.1 mixes them unless told."""
    apart: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
    return CliRunner(**apart)
