"""What pycaffe's callers can catch: RuntimeError for calls that cannot work, and their own layers' exceptions as such.

Everything else that poseidon finds wrong (where Caffe would end the process) is one of `poseidon.errors`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from poseidon.errors import UsageError, UserCodeError


class CallError(UsageError, RuntimeError):
    """A call pycaffe answers with a RuntimeError."""


@contextmanager
def own_exceptions() -> Iterator[None]:
    """What code of the user's raises inside a layer leaves as what it was raised."""
    try:
        yield
    except UserCodeError as told:
        cause = told.__cause__
        assert cause is not None
        if hasattr(cause, "add_note"):  # Python 3.11 shows it below the traceback
            cause.add_note(str(told))
        raise cause from None


def need_file(path: str | os.PathLike[str], what: str) -> None:
    """Refuses a file that cannot be opened before anything is built from it."""
    try:
        with open(path, "rb"):
            pass
    except OSError as problem:
        raise CallError(f"Could not open file {os.fspath(path)} ({what}): {problem.strerror}") from None
