"""A GPU that is not there: one device, one thing at a time, work replaced by the seconds it takes; and workers that
now and then do nothing for a while, the same way for the same seed."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pauses:
    """In each iteration from `first` on a worker pauses with a probability, for `seconds`, before one of its steps."""

    probability: float
    seconds: float
    first: int = 0
    seed: int = 1

    def place(self, rank: int, iteration: int, num_steps: int) -> int | None:
        """Before which of an iteration's steps worker `rank` pauses, if it does."""
        draw = random.Random(f"{self.seed} {rank} {iteration}")
        hits = draw.random() < self.probability and iteration >= self.first
        return draw.randrange(num_steps) if hits else None


QUEUE_S = 0.005  # how far the thread that asks for layers may be ahead of the device
# Less than this is not slept but owed, and adds up: a sleep of 20 μs, which is what a small product takes a GPU, lasts
# 80 μs and more, and as long as it takes to get a processor back.
SHORTEST_S = 0.0003


class PacedDevice:
    """Serves requests in the order they come, as one stream of kernels would.

    Layers are queued, as kernels are: the thread that asks for them goes on, a few milliseconds ahead of the device at
    most, and needs a processor once for several short layers. They follow one another without a gap, however late that
    thread wakes up. Only where it had to wait for something else does the device stand still. `reach` waits until all
    is done that was asked for: whoever uses a result calls it first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy_until = 0.0
        self._has_begun = False
        self._layers_left: int | None = None
        self._pause_s = 0.0

    def run(self, seconds: float) -> None:
        """Something that could not be asked for before, such as an update; until it is done."""
        self._sleep_until(self.ask(seconds))

    def ask(self, seconds: float) -> float:
        """The same, without waiting for it, as a kernel is queued whose result is for the next one. When it is done."""
        self.waited()
        return self._queue(seconds)

    def waited(self) -> None:
        """The device had nothing to do until now."""
        with self._lock:
            self._busy_until = max(self._busy_until, time.perf_counter())

    def reach(self) -> None:
        """Until the device has done what it was asked for so far."""
        self._sleep_until(self._busy_until)

    def _queue(self, seconds: float) -> float:
        """When it will have been done."""
        with self._lock:
            self._busy_until += seconds
            return self._busy_until

    def _sleep_until(self, until_s: float) -> None:
        left = until_s - time.perf_counter()
        if left > SHORTEST_S:
            time.sleep(left)

    def begin(self, pause_at: int | None, seconds: float) -> None:
        """A new iteration: the worker pauses before its layer number `pause_at`, counted over both passes."""
        if not self._has_begun:
            self._has_begun = True
            self.waited()
        self._layers_left, self._pause_s = pause_at, seconds

    def layer(self, seconds: float) -> None:
        """One pass through one layer."""
        if self._layers_left is not None:
            if self._layers_left == 0:
                self.reach()
                time.sleep(self._pause_s)
                self.waited()
            self._layers_left = self._layers_left - 1 if self._layers_left else None
        until_s = self._queue(seconds)
        if until_s - time.perf_counter() > QUEUE_S:
            self._sleep_until(until_s)
