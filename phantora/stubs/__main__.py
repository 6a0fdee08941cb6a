"""``python -m phantora.stubs``: builds the stub libraries and prints their folder.

With ``prebuild`` it is the folder in which the next wheel that is made of this tree takes them along.
"""

import sys

from phantora.errors import PhantoraError
from phantora.stubs import ensure
from phantora.stubs.prebuilt import prebuild

try:
    if sys.argv[1:] == ["prebuild"]:
        print(prebuild(ensure()))
    elif sys.argv[1:]:
        sys.exit("usage: python -m phantora.stubs [prebuild]")
    else:
        print(ensure(progress=lambda text: print(f"phantora: {text}", file=sys.stderr)).directory)
except PhantoraError as error:
    sys.exit(f"phantora: {error}")
