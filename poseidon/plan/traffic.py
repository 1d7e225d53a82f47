"""Traffic: the Sends of one worker on its link, as they push and pull.

Pushes start in the order of the plan, as the link lets them (`link.py`). Where owners hand out new values, a Send's
pull may begin when its update is done: the push has arrived, and the device is through with the layer it was at. Pulls
have a lane of their own (`turns.py`): they too start in the order of the plan, with so many on their way at a time (at
least two really; a plan does not count on that). The link serves both as they start.

The device computes backward, then forward without a wait: which waits there will be is not known yet. An update after
that is done at once. The update's own time is counted where the device applies (`simulate.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence

from poseidon.plan.link import Entrance, Link, Operation

Moved = Callable[[str, int, float, float], None]
"""Told "send" or "pull", the unit, start and end."""


class Traffic:
    """An idle link. `layer_ends_s`: when the device is through with its layers, ascending; None: a barrier holds all
    pulls back. `done_s`: by unit, when all of it that was sent so far has arrived."""

    __slots__ = ("_layer_ends_s", "_moved", "_pulls", "_pushes", "_waiting", "done_s")

    def __init__(
        self, in_flight: int, num_units: int, layer_ends_s: Sequence[float] | None, moved: Moved | None = None
    ) -> None:
        self.done_s = [0.0] * num_units
        link = Link()
        self._pushes, self._pulls = Entrance(link, in_flight), Entrance(link, in_flight)
        self._layer_ends_s = layer_ends_s
        self._moved = moved
        self._waiting: deque[tuple[float, int, Operation]] = deque()  # to pull: when it is updated, and the unit

    def next_start_s(self) -> float:
        """The earliest a push that is ready could start."""
        return self._pushes.next_start_s

    def send(self, unit: int, ready_s: float, push: Operation, pull: Operation | None) -> None:
        """The next Send in order."""
        if self._waiting:
            self._pull_before(max(ready_s, self._pushes.next_start_s))
        start_s, end_s = self._pushes.serve(ready_s, push)
        self._note("send", unit, start_s, end_s)
        if pull is not None and self._layer_ends_s is not None:
            place = bisect_left(self._layer_ends_s, end_s)
            updated_s = self._layer_ends_s[place] if place < len(self._layer_ends_s) else end_s
            self._waiting.append((updated_s, unit, pull))

    def end(self) -> None:
        """No more will be sent: what is left is pulled."""
        while self._waiting:
            self._pull()

    def _pull_before(self, start_s: float) -> None:
        """Pulls what begins before a push."""
        while self._waiting and max(self._waiting[0][0], self._pulls.next_start_s) < start_s:
            self._pull()

    def _pull(self) -> None:
        updated_s, unit, pull = self._waiting.popleft()
        self._note("pull", unit, *self._pulls.serve(updated_s, pull))

    def _note(self, kind: str, unit: int, start_s: float, end_s: float) -> None:
        if end_s > self.done_s[unit]:
            self.done_s[unit] = end_s
        if self._moved is not None:
            self._moved(kind, unit, start_s, end_s)
