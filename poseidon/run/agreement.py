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
_RANKS = (Action.NONE, Action.SNAPSHOT, Action.STOP, Action.YIELD)  # a later one outranks an earlier one


@dataclass(frozen=True, slots=True)
class _Vote:
    """Under way: how many ask for a snapshot, a stop, a yield, and the sum of their seconds per turn."""

    counts: Tensor
    work: Work
    turn: int


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
        self._vote: _Vote | None = None
        self._turn = self._voted_turn = 0
        self._voted_at = now()
        self._pause = 1  # turns from one vote to the next
        self._next_turn = 1
        self._testing = False

    def turn(self, request: Action, *, testing: bool) -> Action:
        """One worker's request after an iteration, or before a round of a test; returns what all do now."""
        self._asked = max(self._asked, request, key=_RANKS.index)
        self._turn += 1
        is_due = self._vote is not None and self._turn - self._vote.turn >= self._lag
        decided = self._read(self._vote) if self._vote is not None and is_due else Action.NONE
        if decided is self._asked is Action.SNAPSHOT:  # asked for since the vote began: the one taken now is that one
            self._asked = Action.NONE
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
