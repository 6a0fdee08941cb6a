"""``python -m phantora.stubs``: builds the stub libraries and prints their folder.

With ``prebuild`` it is the folder in which the next wheel that is made of this tree takes them along. With
``imports FILE...`` it prints what these libraries take from NVIDIA's, for a list of ``phantora/stubs/imported``.
"""

import sys
from pathlib import Path

from phantora.errors import PhantoraError
from phantora.stubs import ensure, imports
from phantora.stubs.prebuilt import prebuild

try:
    if sys.argv[1:] == ["prebuild"]:
        print(prebuild(ensure()))
    elif sys.argv[1:2] == ["imports"]:
        print(*imports.lines(map(Path, sys.argv[2:])), sep="\n")
    elif sys.argv[1:]:
        sys.exit("usage: python -m phantora.stubs [prebuild | imports FILE...]")
    else:
        print(ensure(progress=lambda text: print(f"phantora: {text}", file=sys.stderr)).directory)
except PhantoraError as error:
    sys.exit(f"phantora: {error}")
