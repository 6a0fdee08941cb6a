"""Imports of the command line before it knows its command."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("numpy", "pyarrow", "torch")


def test_help_imports_no_heavy_package() -> None:
    """`phantora --help` lists all commands, so none may import these at its top."""
    code = (
        "import sys\n"
        "from phantora.cli.main import cli\n"
        "cli(['--help'], standalone_mode=False)\n"
        f"print('imported', *sorted(set({HEAVY}) & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "trace" in done.stdout and done.stderr.split() == ["imported"]
