"""torch, imported on the stub libraries. `library` is the rank runtime."""

from phantora import stubs

library = stubs.load(stubs.ensure())

import torch  # noqa: E402

__all__ = ["library", "stubs", "torch"]
