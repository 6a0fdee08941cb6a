"""The one exception type that reaches a user, printed once as a single line."""

from __future__ import annotations


class PhantoraError(Exception):
    """Something the user can mend. The message says what, where, and how to mend it."""

    exit_status = 1
