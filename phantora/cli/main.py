"""The command line: one command, one file; errors are printed once."""

from __future__ import annotations

import difflib
import errno
import gc
import importlib
import importlib.util
import itertools
import keyword
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import NoReturn

import click

from phantora.cli.settings import defaults
from phantora.errors import PhantoraError, cause_of, limit_of_processes
from phantora.version import version
from phantora.without_pandas import block_pandas

# Command to module. The function has the name of the command; a module loads at its first use.
COMMANDS = {
    "trace": "phantora.cli.trace",
    "analyze": "phantora.cli.analyze",
    "why": "phantora.cli.why",
    "diff": "phantora.cli.diff",
    "view": "phantora.cli.view",
    "export": "phantora.cli.export",
    "query": "phantora.cli.query",
    "fits": "phantora.cli.fits",
    "plan": "phantora.cli.plan",
    "compare": "phantora.cli.compare",
    "goodput": "phantora.cli.goodput",
    "sweep": "phantora.cli.sweep",
    "replay": "phantora.cli.replay",
    "import": "phantora.cli.importing",
    "calibrate": "phantora.cli.calibrate",
    "profile": "phantora.cli.profile",
    "cluster": "phantora.cli.cluster",
    "doctor": "phantora.cli.doctor",
    "daemon": "phantora.cli.daemon",
    "schema": "phantora.cli.schema",
    "mcp": "phantora.cli.mcp",
    "completion": "phantora.cli.completion",
}
INTERNAL_ERROR = 70  # EX_SOFTWARE
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Commands(click.Group):
    """The commands; each module loads at its first use."""

    def invoke(self, ctx: click.Context) -> object:
        """Runs a command. Raises click.Abort for an interrupt, for which click would print an empty line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise click.Abort from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands whose modules are installed, in the order of the help."""
        return [name for name, module in COMMANDS.items() if importlib.util.find_spec(module)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command of this name; None for an unknown name."""
        module = COMMANDS.get(cmd_name)
        if module is None or importlib.util.find_spec(module) is None:
            return None
        command = getattr(importlib.import_module(module), cmd_name + "_" * keyword.iskeyword(cmd_name))
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's; the error for an unknown name suggests a similar one."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            ctx.fail(_no_such_command(name, self.list_commands(ctx)))
        return super().resolve_command(ctx, args)


def _no_such_command(name: str, commands: list[str]) -> str:
    """The error for an unknown command: suggests a similar one, or `trace` for a script."""
    if name.endswith(".py"):
        return f"{name} is not a command; run it with `phantora trace {name}`"
    close = difflib.get_close_matches(name, commands, 1)
    return f"no command {name!r}; " + (f"did you mean {close[0]}?" if close else f"there are {', '.join(commands)}")


def _no_such_option(error: click.ClickException) -> str:
    """Click's message; for a misspelt option, the most similar one; for one behind the script, its place."""
    if isinstance(error, click.MissingParameter) and error.param is not None:
        given = next((name for name in error.param.opts if name in sys.argv), None)
        if given is not None:
            return f"{given} stands behind the script, which gets all that follows it; write {given} before the script"
        for option, script in itertools.pairwise(sys.argv):
            if option.startswith("-") and script.endswith(".py"):
                return f"{option} takes {script} as its value, so there is no script; write {option} VALUE {script}"
    if not isinstance(error, click.NoSuchOption):
        return error.format_message().removesuffix(".")
    close = difflib.get_close_matches(error.option_name, error.possibilities or (), 1, 0.0)
    return f"no option {error.option_name!r}" + (f"; did you mean {close[0]}?" if close else "")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version(), prog_name="phantora", message="%(prog)s %(version)s")
@click.option(
    "--config",
    metavar="FILE",
    help="Options by command: [trace] cluster = '1x8xH100'  [default: the table [tool.phantora] of pyproject.toml]",
)
@click.pass_context
def cli(context: click.Context, config: str | None) -> None:
    """Run unmodified PyTorch training scripts on GPUs you don't have, in virtual time.

    Start with `phantora trace train.py --cluster 1x8xH100 -o run.perfetto`.
    """
    group = context.command
    assert isinstance(group, Commands)
    context.default_map = defaults(config, lambda name: group.get_command(context, name))


class Interrupted(KeyboardInterrupt):
    """A signal asks for the end; all that must be put in order is on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_received: list[int] = []


def _catch_signals() -> None:
    def handler(number: int, _: object) -> NoReturn:
        _received.append(number)
        raise Interrupted(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # by nohup, or a shell that put it into the background
            signal.signal(number, handler)
    sys.unraisablehook = _send_again


_SOON = 0.02  # s: until the hook, in which it would be dropped again, is left


def _send_again(dropped: sys.UnraisableHookArgs) -> None:
    """Python drops what is raised in a finalizer or a callback of a weak reference, as importlib has: also a Ctrl-C."""
    if isinstance(dropped.exc_value, Interrupted):
        again = threading.Timer(_SOON, os.kill, (os.getpid(), dropped.exc_value.number))
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(dropped)


def _catch_no_signals() -> None:
    """Lets signals end the process at once. An exception would be printed with its traceback while Python ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _open_standard_streams() -> None:
    """A closed descriptor 0, 1 or 2 would be given to the next file that is opened, such as the log."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free: `fd`
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _leave(status: int) -> NoReturn:
    """Ends the process; what standard output still holds must reach it."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the flush at exit shall not fail again
        if isinstance(error, BrokenPipeError):
            status = status or 128 + signal.SIGPIPE
        elif not status:
            status = 1
            _report(f"cannot write standard output: {cause_of(error)}")
    sys.exit(status)


def _report(text: str) -> None:
    try:
        print(f"phantora: {text}", file=sys.stderr, flush=True)
    except OSError:  # the terminal, or who read standard error, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def main() -> None:
    """Runs the command. Raises SystemExit with its status."""
    _open_standard_streams()
    _catch_signals()
    block_pandas()
    gc.set_threshold(50_000, 20, 20)  # tables and modules are many objects and no garbage: 0.5 s of a run
    try:
        status = _status()
        _catch_no_signals()
    except Interrupted as error:  # it came when the command had ended
        _report(f"interrupted by {signal.Signals(error.number).name}")
        status = 128 + error.number
    _leave(status)


def _status() -> int:
    """Runs the command; its exit status. Errors are printed."""
    debug = bool(os.environ.get("PHANTORA_DEBUG"))
    try:
        status = cli.main(prog_name="phantora", standalone_mode=False)
    except click.ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # click 8.2 and later
            error.show()
            return error.exit_code
        context = getattr(error, "ctx", None)
        hint = f" (see `{context.command_path} --help`)" if context is not None else ""
        _report(_no_such_option(error) + hint)
        return error.exit_code
    except PhantoraError as error:
        if debug:
            raise
        _report(str(error))
        return error.exit_status
    except (click.Abort, KeyboardInterrupt) as error:
        cause = error.__cause__ or error
        number = cause.number if isinstance(cause, Interrupted) else signal.SIGINT
        _report(f"interrupted by {signal.Signals(number).name}")
        return 128 + number
    except BrokenPipeError:
        return 128 + signal.SIGPIPE
    except Exception as error:
        if debug:
            raise
        if _received:  # an extension may make another exception of the signal's
            _report(f"interrupted by {signal.Signals(_received[0]).name}")
            return 128 + _received[0]
        if message := limit_of_processes(error):
            _report(message)
            with suppress(OSError):
                sys.stdout.flush()
            os._exit(1)  # pyarrow 26 ends with SIGSEGV if some of its threads have started and others could not
        if isinstance(error, OSError) and error.filename is None and error.errno in _NOT_WRITTEN:
            _report(f"cannot write the output: {cause_of(error)}")
            return 1
        _report(
            f"internal error: {type(error).__name__}: {error}; set PHANTORA_DEBUG=1 for the traceback and report it"
        )
        return INTERNAL_ERROR
    return status if isinstance(status, int) else 0
