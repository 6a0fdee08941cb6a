"""Which files of Python are the user's own."""

from __future__ import annotations

import os
import re
import sysconfig

_PACKAGES = re.compile(r"/(?:site|dist)-packages/")
_OTHERS = (
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")),
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    "<frozen ",
    "<string>",
)


def is_users(filename: str) -> bool:
    """True for a file that is neither Python's, a package's nor Phantora's."""
    return not (filename.startswith(_OTHERS) or _PACKAGES.search(filename))
