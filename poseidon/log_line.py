"""One line of a log as glog writes it, and numbers in it.

    I1116 11:22:33.456789 12345 solver.cpp:239] Iteration 20 (41.5 iter/s, 0.48s/20 iters), loss = 1.14239

severity, month and day, time, process, and the place in Caffe that writes this line.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class LogLine:
    """`place` is file and line in Caffe's sources; `severity` I, W, E or F. The text may run over several lines."""

    place: str
    text: str
    severity: str = "I"

    def stamped(self, now: datetime) -> str:
        """As it stands in the log, with its end of line."""
        return f"{self.severity}{now:%m%d %H:%M:%S.%f} {os.getpid()} {self.place}] {self.text}\n"


def number(value: float) -> str:
    """As a C++ stream prints it: six significant digits, no trailing zeros."""
    return f"{value:g}"
