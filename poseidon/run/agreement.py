"""Agreement: what is asked of any worker, by a signal for instance, is done by all of them in the same iteration.

Every worker counts the votes of all, in a vote that costs nobody any time: it is begun after one iteration and read
after the next. Nor does it come after every iteration: about once in `every_s` seconds is soon enough for a person. How
many iterations that is follows from how long the last ones took on all workers together, so all count alike.

    iteration      i          i + 1            i + 1 + n …
                   begin      read, act        begin

Where workers may be `lag` iterations apart, a vote is read so many iterations later, when all have begun it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from poseidon.run.roundtable import Roundtable
from poseidon.solver import Action
from poseidon.transport import Work

# The pause between two votes grows by this factor at most, lest one quick iteration be taken for the rule.
_GROWTH = 4
# A signal that a launcher passes on to all may reach one worker this much later than another, or one turn later.
_SAME_S = 1.0
_RANKS = (Action.NONE, Action.SNAPSHOT, Action.STOP, Action.YIELD)  # a later one outranks an earlier one


@dataclass(frozen=True, slots=True)
class _Vote:
    """Under way: how many ask for a snapshot, a stop, a yield, and the sum of their seconds per turn."""

    counts: Tensor
    work: Work
    turn: int


@dataclass(frozen=True, slots=True)
class _Late:
    """Until when a request for a snapshot is one that the others have had already."""

    turn: int
    seconds: float

    def is_the_same(self, turn: int, seconds: float) -> bool:
        return turn <= self.turn or seconds < self.seconds


class Agreement:
    """`now` tells the time in seconds; `lag`: after how many iterations a vote is read."""

    def __init__(
        self, table: Roundtable, every_s: float, now: Callable[[], float] = time.perf_counter, lag: int = 1
    ) -> None:
        self._lag = lag
        self._table = table
        self._every_s = every_s
        self._now = now
        self._asked = Action.NONE
        self._has_asked = False  # for a snapshot, in the vote under way or since
        self._late = _Late(-1, 0.0)
        self._vote: _Vote | None = None
        self._turn = self._voted_turn = 0
        self._voted_at = now()
        self._pause = 1  # turns from one vote to the next
        self._next_turn = 1
        self._testing = False

    def turn(self, request: Action, *, testing: bool) -> Action:
        """One worker's request after an iteration, or before a round of a test; returns what all do now."""
        self._turn += 1
        if request is Action.SNAPSHOT and self._late.is_the_same(self._turn, self._now()):
            request = Action.NONE
        self._asked = max(self._asked, request, key=_RANKS.index)
        self._has_asked |= request is Action.SNAPSHOT
        is_due = self._vote is not None and self._turn - self._vote.turn >= self._lag
        decided = self._read(self._vote) if self._vote is not None and is_due else Action.NONE
        if decided is Action.SNAPSHOT:
            self._take_for_mine()
        if testing != self._testing:  # rounds of a test take another time than iterations: measure anew
            self._testing, self._pause, self._next_turn = testing, 1, self._turn
        if self._vote is None and self._turn >= self._next_turn:
            self._vote = self._begin()
        return decided

    def end(self) -> None:
        """Waits for a vote that is under way; nobody acts on it any more."""
        if self._vote is not None:
            self._vote.work.wait()
            self._vote = None

    def _take_for_mine(self) -> None:
        """The snapshot taken now is the one asked for of this worker since the vote began, or the one it is late to be
        asked for."""
        if self._asked is Action.SNAPSHOT:
            self._asked = Action.NONE
        if not self._has_asked:
            self._late = _Late(self._turn + 1, self._now() + _SAME_S)
        self._has_asked = False

    def _begin(self) -> _Vote:
        now = self._now()
        seconds = (now - self._voted_at) / (self._turn - self._voted_turn)
        self._voted_at, self._voted_turn = now, self._turn
        counts = [*(self._asked is action for action in _RANKS[1:]), seconds]
        self._asked = Action.NONE
        numbers = torch.tensor(counts, dtype=torch.float64)
        return _Vote(numbers, self._table.start_sum(numbers), self._turn)

    def _read(self, vote: _Vote) -> Action:
        self._vote = None
        vote.work.wait()
        *asked, seconds = vote.counts.tolist()
        wanted = self._every_s * self._table.size / seconds if seconds > 0 else 1.0
        self._pause = int(min(max(wanted, 1.0), self._pause * _GROWTH))
        self._next_turn = vote.turn + self._pause
        wanted_by_some = [action for action, count in zip(_RANKS[1:], asked, strict=True) if count]
        return wanted_by_some[-1] if wanted_by_some else Action.NONE
