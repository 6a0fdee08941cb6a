"""Options from a file: ``--config run.toml``, or the table ``[tool.phantora]`` of the current folder's pyproject.toml.

A table has the name of a command, a key that of an option. The command line wins.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from phantora.errors import PhantoraError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def defaults(path: str | None, command_of: Callable[[str], click.Command | None]) -> dict[str, dict[str, Any]]:
    """Values by command and parameter, as click's ``default_map`` has them. Raises PhantoraError for a file that cannot
    be read, and for names that there are not."""
    if path is None and not Path("pyproject.toml").is_file():
        return {}
    source = path or "pyproject.toml"
    try:
        data = tomllib.loads(Path(source).read_text())
    except (OSError, ValueError) as error:
        if path is None:
            return {}  # broken for others too: not ours to say
        raise PhantoraError(f"{source}: cannot read the options: {error}") from error
    tables = data if path else data.get("tool", {}).get("phantora", {})
    where = source if path else f"{source} [tool.phantora]"
    return {name: _values(where, name, table, command_of(name)) for name, table in tables.items()}


def _values(where: str, name: str, table: Any, command: click.Command | None) -> dict[str, Any]:
    if command is None or not isinstance(table, dict):
        raise PhantoraError(f"{where}: {name!r} is no command; write options as [trace] cluster = '1x8xH100'")
    options = {
        text.lstrip("-").replace("_", "-"): option
        for option in command.params
        if isinstance(option, click.Option)
        for text in (*option.opts, *option.secondary_opts)
        if text.startswith("--")
    }
    found = {}
    for key, value in table.items():
        option = options.get(key.replace("_", "-"))
        if option is None or option.name is None:
            close = difflib.get_close_matches(key, options, 1)
            hint = f"; did you mean {close[0]}?" if close else f" (see `phantora {name} --help`)"
            raise PhantoraError(f"{where}: phantora {name} has no option {key!r}{hint}")
        found[option.name] = list(value) if isinstance(value, list) else value
    return found
