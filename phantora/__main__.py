"""``python -m phantora``, and the command ``phantora``."""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while modules are imported ends it without a traceback

from phantora import process
from phantora.cli.main import main as command


def main() -> None:
    """Entry point. Ends the process with the command's status."""
    try:
        command()
    except SystemExit as end:
        if isinstance(end.code, str):
            raise
        process.leave(end.code or 0)


if __name__ == "__main__":
    main()
