"""Where a command's log lines go: standard error, as glog writes them there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from poseidon.solver.log import LogWriter
from poseidon.solver.log_line import LogLine

_SEVERITIES = "IWEF"


class CommandLog(LogWriter):
    """Caffe's log lines on standard error; GLOG_minloglevel (0 to 3) leaves out the less severe ones."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        level = os.environ.get("GLOG_minloglevel", "0")  # noqa: SIM112  (glog spells it so)
        self._least = int(level) if level.isdecimal() else 0

    def write(self, lines: Iterable[LogLine]) -> None:
        super().write(line for line in lines if _SEVERITIES.index(line.severity) >= self._least)

    def say(self, place: str, text: str, severity: str = "I") -> None:
        self.write([LogLine(place, text, severity)])
