"""The command line: one verb, one file; errors are printed once."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from importlib import metadata

import click

from phantora.errors import PhantoraError

# verb -> module; the function is called like the verb. Verbs are loaded when they are used.
VERBS = {
    "trace": "phantora.cli.trace",
    "analyze": "phantora.cli.analyze",
    "diff": "phantora.cli.diff",
    "view": "phantora.cli.view",
    "export": "phantora.cli.export",
    "sweep": "phantora.cli.sweep",
    "replay": "phantora.cli.replay",
    "profile": "phantora.cli.profile",
    "cluster": "phantora.cli.cluster",
    "doctor": "phantora.cli.doctor",
    "completion": "phantora.cli.completion",
}
INTERNAL_ERROR = 70  # EX_SOFTWARE


def version() -> str:
    """Of the installed package."""
    try:
        return metadata.version("phantora")
    except metadata.PackageNotFoundError:  # run from a checkout
        return "0.0.0+source"


class Verbs(click.Group):
    """The verbs, each loaded when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs whose modules are installed, in the order of the help."""
        return [verb for verb, module in VERBS.items() if importlib.util.find_spec(module)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a verb, imported only now; None where there is no such verb."""
        module = VERBS.get(cmd_name)
        if module is None or importlib.util.find_spec(module) is None:
            return None
        command = getattr(importlib.import_module(module), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, but an unknown verb ends with the verbs that sound like it."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            ctx.fail(_no_such_verb(name, self.list_commands(ctx)))
        return super().resolve_command(ctx, args)


def _no_such_verb(name: str, verbs: list[str]) -> str:
    """What to say of a word that is no verb: often a misspelt one, or a script that wants `trace`."""
    if name.endswith(".py"):
        return f"{name} is no verb; run it with `phantora trace {name}`"
    close = difflib.get_close_matches(name, verbs, 1)
    return f"no verb {name!r}; " + (f"did you mean {close[0]}?" if close else f"there are {', '.join(verbs)}")


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version(), prog_name="phantora", message="%(prog)s %(version)s")
def cli() -> None:
    """Run unmodified PyTorch training scripts on GPUs you don't have, in virtual time.

    Begin with `phantora trace train.py --cluster 1x8xH100 -o run.perfetto`.
    """


def main() -> None:
    """Entry point. Ends the process with the verb's status."""
    debug = bool(os.environ.get("PHANTORA_DEBUG"))
    try:
        status = cli.main(prog_name="phantora", standalone_mode=False)
    except click.ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # click 8.2 and later
            error.show()
            sys.exit(error.exit_code)
        context = getattr(error, "ctx", None)
        hint = f" (see `{context.command_path} --help`)" if context is not None else ""
        print(f"phantora: {error.format_message()}{hint}", file=sys.stderr)
        sys.exit(error.exit_code)
    except PhantoraError as error:
        if debug:
            raise
        print(f"phantora: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except (click.Abort, KeyboardInterrupt):
        print("phantora: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the flush at exit shall not fail again
        sys.exit(141)
    except Exception as error:
        if debug:
            raise
        print(
            f"phantora: internal error: {type(error).__name__}: {error}; set PHANTORA_DEBUG=1 "
            "for the traceback and report it",
            file=sys.stderr,
        )
        sys.exit(INTERNAL_ERROR)
    sys.exit(status if isinstance(status, int) else 0)
