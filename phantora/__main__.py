"""``python -m phantora``, and the command ``phantora``."""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while modules are imported ends it without a traceback

from phantora.cli.main import main

if __name__ == "__main__":
    main()
