"""A GPU that is not there: one device, one thing at a time, work replaced by the seconds it takes."""

from __future__ import annotations

import threading
import time


class PacedDevice:
    """Serves requests in the order they come, as one stream of kernels would; `run` returns when its own is done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy_until = 0.0

    def run(self, seconds: float) -> None:
        with self._lock:
            self._busy_until = max(self._busy_until, time.perf_counter()) + seconds
            until = self._busy_until
        left = until - time.perf_counter()
        if left > 0:
            time.sleep(left)
