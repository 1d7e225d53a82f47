"""Log lines on standard error, as glog writes them there. Needs no PyTorch, so that small tools answer at once."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVar

from poseidon.cli.terminal import LastingStream
from poseidon.log_line import LogLine

_SEVERITIES = "IWEF"

LogT = TypeVar("LogT", bound="PlainLog")


class PlainLog:
    """Caffe's log lines on standard error; GLOG_minloglevel (0 to 3) leaves out the less severe ones."""

    def __init__(self) -> None:
        self._stream = LastingStream(sys.stderr)
        level = os.environ.get("GLOG_minloglevel", "0")  # noqa: SIM112  (glog spells it so)
        self._least = int(level) if level.isdecimal() else 0

    def write(self, lines: Iterable[LogLine]) -> None:
        for line in lines:
            if _SEVERITIES.index(line.severity) >= self._least:
                self._stream.write(line.stamped(datetime.now()))
        self._stream.flush()

    def say(self, place: str, text: str, severity: str = "I") -> None:
        self.write([LogLine(place, text, severity)])

    @contextmanager
    def taking_warnings(self: LogT) -> Iterator[LogT]:
        """While inside, what the package warns about (an old prototxt, say) becomes lines of this log."""
        handler = _LogLines(self)
        logger = logging.getLogger("poseidon")
        logger.addHandler(handler)
        logger.propagate = False
        try:
            yield self
        finally:
            logger.propagate = True
            logger.removeHandler(handler)


class _LogLines(logging.Handler):
    """Python's log records as glog's lines."""

    def __init__(self, log: PlainLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        severity = "E" if record.levelno >= logging.ERROR else "W"
        self._log.say(f"{record.filename}:{record.lineno}", record.getMessage(), severity)
