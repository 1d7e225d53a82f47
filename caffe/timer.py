"""Timer: Caffe's stopwatch. `ms` is the time between the last start and stop, or since the start while it runs."""

from __future__ import annotations

import time


class Timer:
    def __init__(self) -> None:
        self._started: float | None = None
        self._ms = 0.0

    def start(self) -> None:
        self._started = time.perf_counter()

    def stop(self) -> None:
        self._ms = self.ms
        self._started = None

    @property
    def ms(self) -> float:
        return self._ms if self._started is None else (time.perf_counter() - self._started) * 1e3
