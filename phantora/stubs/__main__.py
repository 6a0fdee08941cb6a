"""``python -m phantora.stubs``: builds the stub libraries and prints their folder."""

import sys

from phantora.errors import PhantoraError
from phantora.stubs import ensure

try:
    print(ensure(progress=lambda text: print(f"phantora: {text}", file=sys.stderr)).directory)
except PhantoraError as error:
    sys.exit(f"phantora: {error}")
