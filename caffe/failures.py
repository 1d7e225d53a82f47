"""What pycaffe's callers can catch: RuntimeError for calls that cannot work, and their own layers' exceptions as such.

Everything else that poseidon finds wrong (where Caffe would end the process) is one of `poseidon.errors`.
"""

from __future__ import annotations

import os

from poseidon.errors import UsageError, UserCodeError


class CallError(UsageError, RuntimeError):
    """A call pycaffe answers with a RuntimeError."""


class OwnExceptions:
    """While inside, what code of the user's raises in a layer leaves as what it was raised, StopIteration included."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if isinstance(problem, UserCodeError) and problem.__cause__ is not None:
            cause = problem.__cause__
            if hasattr(cause, "add_note"):  # Python 3.11 shows it below the traceback
                cause.add_note(str(problem))
            raise cause from None


def need_file(path: str | os.PathLike[str], what: str) -> None:
    """Refuses a file that cannot be opened before anything is built from it."""
    try:
        with open(path, "rb"):
            pass
    except OSError as problem:
        raise CallError(f"Could not open file {os.fspath(path)} ({what}): {problem.strerror}") from None
