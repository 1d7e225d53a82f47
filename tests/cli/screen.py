"""A pseudo-terminal as standard error, and what was written to it, without the control sequences."""

from __future__ import annotations

import os
import re
import sys
import threading
import tty
from collections.abc import Callable, Sequence
from unittest import mock

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def text_of(written: bytes) -> str:
    return _CONTROL.sub("", written.decode())


def run_on_terminal(program: Callable[[Sequence[str]], int], words: Sequence[str], columns: int = 80) -> list[str]:
    """The lines that a command, run in this process, writes to a terminal of that width; every state of a line that is
    rewritten is one of them."""
    master, slave = os.openpty()
    tty.setraw(slave)
    written = bytearray()
    reader = threading.Thread(target=_read_all, args=(master, written))
    reader.start()
    environment = {"COLUMNS": str(columns), "TERM": "xterm"}
    with (
        open(slave, "w") as terminal,
        mock.patch.dict(os.environ, environment),
        mock.patch.object(sys, "stderr", terminal),
    ):
        code = program(words)
    reader.join()
    assert code == 0, text_of(bytes(written))
    return [line.rstrip() for line in re.split(r"[\r\n]+", text_of(bytes(written))) if line.strip()]


def _read_all(master: int, written: bytearray) -> None:
    try:
        while data := os.read(master, 1 << 16):
            written += data
    except OSError:  # how Linux says that the other side has been closed
        pass
    finally:
        os.close(master)
