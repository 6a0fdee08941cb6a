"""``phantora mcp``: the commands as tools of the Model Context Protocol, for coding agents.

A tool is a command: its input schema comes from the command's options, its output schema is that of the command's
``--json``. Each call runs the command in a process of its own, so that a failed run leaves the server as it was.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from phantora.errors import PhantoraError
from phantora.run_process import PHANTORA
from phantora.version import version

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

TOOLS = (
    "trace", "fits", "compare", "plan", "analyze", "why", "diff", "query", "replay", "goodput", "doctor", "import",
)  # fmt: skip
INSTRUCTIONS = """Phantora runs unmodified PyTorch training scripts on simulated GPUs, on a machine without one.
- How fast is it, what holds it up: trace (with output), then analyze or why on the log.
- Does it fit, which batch is the largest: fits.
- Which GPU to rent, what does the job cost: compare; days with failures: goodput on a log.
- Why is B slower than A: diff of two logs, the base first.
- Why did a real job hang or run out of memory: why on its dumps; then diff of the dumps and a simulated log.
- Does the simulation agree with a real run: analyze with validate, a trace or the text that the framework printed.
- What can be simulated of this script: doctor.
Quote times with their error bar. Losses are not computed: never judge convergence."""
_ARGUMENTS = {  # descriptions of commands' arguments
    "target": "The training script and its own arguments: ['train.py', '--steps', '6']. A few steps suffice.",
    "log": "An .arrow log of trace, replay or import.",
    "logs": "Two .arrow logs, the base first; or a job's dumps or memory snapshot, and a log.",
    "files": "Files of a job, all of one kind.",
    "run": "An .arrow log to replay.",
    "script": "The training script.",
    "sql": "SQL over the log's tables, as Perfetto's trace processor reads it.",
}
_ON_STDERR = ("trace", "replay", "import")  # tools whose summary is on standard error
_LEFT_OUT = {"as_json", "view", "help"}
_TYPES = {"integer": "integer", "integer range": "integer", "float": "number", "float range": "number"}
_WIDTH = "100"


@dataclass(frozen=True)
class Outcome:
    """What a command printed."""

    status: int
    text: str
    error: str


Progress = Callable[[str], Awaitable[None]]


def input_schema(command: click.Command) -> dict[str, Any]:
    """JSON Schema of the arguments of the tool that is `command`."""
    properties: dict[str, Any] = {}
    for parameter in _parameters(command):
        properties[str(parameter.name)] = _schema(parameter)
    if _prints_json(command):
        properties["json"] = {"type": "boolean", "description": "All numbers as JSON, instead of the terminal's text."}
    properties["folder"] = {"type": "string", "description": "The command runs there; paths are relative to it."}
    required = [
        str(one.name)
        for one in _parameters(command)
        if isinstance(one, click.Argument) and (one.required or one.nargs < 0)
    ]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def words(command: click.Command, arguments: Mapping[str, Any]) -> list[str]:
    """The command line of a call. Raises PhantoraError for a name that the tool does not have."""
    parameters = {str(one.name): one for one in _parameters(command)}
    unknown = sorted(set(arguments) - set(parameters) - {"json", "folder"})
    if unknown:
        raise PhantoraError(f"{command.name} has no argument {unknown[0]!r}; it has {', '.join(parameters)}")
    found = ["--json"] if arguments.get("json") and _prints_json(command) else []
    behind: list[str] = []
    for name, parameter in parameters.items():
        value = arguments.get(name)
        if value is None:
            continue
        values = [str(one) for one in (value if isinstance(value, list) else [value])]
        if isinstance(parameter, click.Argument):
            behind += values
        elif parameter.is_flag:
            found += [_long(parameter.opts)] if value else parameter.secondary_opts[:1]
        else:
            found += [f"{_long(parameter.opts)}={one}" for one in values]
    return [*found, *behind]


def _parameters(command: click.Command) -> list[click.Argument | click.Option]:
    return [
        one
        for one in command.params
        if isinstance(one, click.Argument)
        or (isinstance(one, click.Option) and not one.hidden and one.name not in _LEFT_OUT)
    ]


def _prints_json(command: click.Command) -> bool:
    return any(one.name == "as_json" for one in command.params)


def _long(names: list[str]) -> str:
    return max(names, key=len)


def _schema(parameter: click.Argument | click.Option) -> dict[str, Any]:
    """JSON Schema of one argument."""
    several = parameter.nargs == -1 or parameter.multiple
    if isinstance(parameter.type, click.Choice):
        found: dict[str, Any] = {"type": "string", "enum": list(map(str, parameter.type.choices))}
    elif isinstance(parameter, click.Option) and parameter.is_flag:
        found = {"type": "boolean"}
    else:
        found = {"type": _TYPES.get(parameter.type.name, "string")}
    if several:
        found = {"type": "array", "items": found}
    text = parameter.help if isinstance(parameter, click.Option) else _ARGUMENTS.get(str(parameter.name))
    return {**found, "description": text} if text else found


def output_schema(name: str, command: click.Command) -> dict[str, Any]:
    """JSON Schema of a tool's result: the text, or the command's ``--json`` where it was asked for."""
    from phantora.cli.printed import schema

    properties: dict[str, Any] = {"text": {"type": "string", "description": "What a terminal shows."}}
    definitions: dict[str, Any] = {}
    if _prints_json(command):
        result = schema(name)
        definitions = result.pop("$defs", {})
        result.pop("$schema", None)
        properties["result"] = result
    found: dict[str, Any] = {"type": "object", "properties": properties}
    return {**found, "$defs": definitions} if definitions else found


async def run(name: str, command_line: list[str], folder: str | None, progress: Progress) -> Outcome:
    """Runs a command in its own process. `progress` gets each line of its standard error."""
    child = await asyncio.create_subprocess_exec(
        *PHANTORA, name, *command_line,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=folder,
        env={**os.environ, "COLUMNS": _WIDTH},
    )  # fmt: skip
    errors: list[str] = []

    async def follow() -> None:
        assert child.stderr is not None
        async for line in child.stderr:
            text = line.decode(errors="replace").strip()
            if text:
                errors.append(text)
                await progress(text)

    try:
        assert child.stdout is not None
        printed, _ = await asyncio.gather(child.stdout.read(), follow())
        status = await child.wait()
    finally:
        if child.returncode is None:  # the client gave up
            child.send_signal(signal.SIGINT)
            await child.wait()
    return Outcome(status, printed.decode(errors="replace"), "\n".join(errors))


def answer(name: str, found: Outcome) -> str:
    """The text of a call: what the command printed, with standard error where its summary or its verdict is there. A
    script prints on standard output next to it."""
    if found.text and (name in _ON_STDERR or found.status):
        return f"{found.text.rstrip()}\n\n{found.error}".rstrip()
    return found.text or found.error


def server() -> Server[Any]:
    """The server. Raises PhantoraError if the package ``mcp`` is missing."""
    try:
        from mcp import types
        from mcp.server.lowlevel import Server
    except ImportError as error:
        raise PhantoraError("this needs the package mcp: pip install 'phantora[mcp]'") from error
    from phantora.cli.main import cli

    group = click.Context(cli)
    commands = {name: command for name in TOOLS if (command := cli.get_command(group, name)) is not None}

    async def tools(_: Any, __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=click.unstyle(command.help or "").replace("\b", "").strip(),
                    input_schema=input_schema(command),
                    output_schema=output_schema(name, command),
                )
                for name, command in commands.items()
            ]
        )

    async def call(context: Any, parameters: types.CallToolRequestParams) -> types.CallToolResult:
        arguments, command = dict(parameters.arguments or {}), commands.get(parameters.name)
        if command is None:
            return _failed(f"no tool {parameters.name!r}; there are {', '.join(commands)}")

        lines = itertools.count(1)

        async def progress(text: str) -> None:
            await context.session.report_progress(next(lines), message=text)

        try:
            line = words(command, arguments)
            found = await run(parameters.name, line, arguments.get("folder"), progress)
        except (PhantoraError, OSError) as error:
            return _failed(str(error))
        as_json = "--json" in line[:1] and found.text
        text = found.text if as_json else answer(parameters.name, found)
        content = {"result": json.loads(text)} if as_json else {"text": text}
        if found.status and (not found.text or parameters.name in _ON_STDERR):
            return _failed(answer(parameters.name, found) or f"{parameters.name} ended with status {found.status}")
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)], structured_content=content, is_error=False
        )

    def _failed(text: str) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)

    return Server("phantora", version=version(), instructions=INSTRUCTIONS, on_list_tools=tools, on_call_tool=call)


@click.command("mcp", epilog="Example: claude mcp add phantora -- phantora mcp")
def mcp() -> None:
    """Serve the commands as tools to coding agents, over standard input and output.

    The protocol is MCP; the package `mcp` must be installed: pip install 'phantora[mcp]'.
    """
    served = server()

    async def serve() -> None:
        from mcp.server.stdio import stdio_server

        async with stdio_server() as (reader, writer):
            await served.run(reader, writer, served.create_initialization_options())

    asyncio.run(serve())
