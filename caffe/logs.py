"""Where solvers log: standard error, in Caffe's format, from the severity that GLOG_minloglevel names (0: everything).

`init_log(level)` and `set_logging_disabled()` change that for what follows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from poseidon.solver.log import LogLine, LogWriter

_SEVERITIES = "IWEF"


def _first_level() -> int:
    level = os.environ.get("GLOG_minloglevel", "0")  # noqa: SIM112  (glog spells it so)
    return int(level) if level.isdecimal() else 0


_level = _first_level()


class _StandardError:
    """Today's sys.stderr: notebooks and tests exchange it."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


class FaceLog(LogWriter):
    """Caffe's log lines, as far as the level lets them through."""

    def __init__(self) -> None:
        super().__init__(_StandardError())  # type: ignore[arg-type]

    def write(self, lines: Iterable[LogLine]) -> None:
        super().write(line for line in lines if _SEVERITIES.index(line.severity) >= _level)


def init_log(level: int = 0, stderr: bool = True) -> None:
    """Logs from this severity on: 0 everything, 1 warnings, 2 errors. Lines always go to standard error."""
    global _level
    _level = level if stderr else len(_SEVERITIES)


def set_logging_disabled() -> None:
    """Leaves out everything but errors."""
    init_log(_SEVERITIES.index("E"))


def log(text: str) -> None:
    """One line of the caller's own."""
    FaceLog().write([LogLine("pycaffe:1", text)])
