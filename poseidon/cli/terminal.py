"""What a command shows on a terminal instead of Caffe's log: where that is wanted, and a console for it."""

from __future__ import annotations

import argparse
import contextlib
import errno
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from rich.console import Console


def has_display(found: argparse.Namespace) -> bool:
    """`poseidon` on a terminal has a live display; `caffe`, --plain and pipes get Caffe's log lines."""
    return found.program == "poseidon" and not found.plain and sys.stderr.isatty()


class LastingStream:
    """A stream that outlives its terminal: after a hang-up, what is written goes nowhere instead of failing."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with _terminal_may_be_gone():
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with _terminal_may_be_gone():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _terminal_may_be_gone() -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        if problem.errno != errno.EIO:
            raise


def console() -> Console:
    """Standard error, where the display goes. Paths and numbers are left as they are: no colours, no wrapping."""
    return Console(file=LastingStream(sys.stderr), highlight=False, markup=False, soft_wrap=True)  # type: ignore[arg-type]


@contextlib.contextmanager
def loading(found: argparse.Namespace) -> Iterator[None]:
    """Around imports that take seconds: a terminal is told why nothing happens yet."""
    with busy("loading PyTorch") if has_display(found) else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def busy(what: str) -> Iterator[None]:
    """Around what may take long and says nothing itself: on a terminal something moves, and tells what is done."""
    if not sys.stderr.isatty():
        yield
        return
    with console().status(what):
        yield
