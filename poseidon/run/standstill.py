"""Standstill: who makes no progress although everybody waits for it.

Signs of life come from a thread of their own: a worker gives them also when the thread that trains is in a deadlock, or
waits for a disk that answers no more. Such a one is told from a slow one by what moves: finished iterations, what it
has sent, meetings it has come to, and the processor time of the thread that trains. One hangs if nothing of this has
moved for the limit, it is not waiting for others itself, and all others have waited that long for it.

Nobody is judged before training begins, nor while this process was asleep itself. Rank 0, as long as it may be writing
a snapshot, which is waiting for a disk and no computing, has `SAVING_PATIENCE` times the limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from poseidon.run.stuck import waited_for
from poseidon.run.watch import SAVING, TRAINING_S
from poseidon.transport.vitals import Vitals

MOVING_SHARE = 0.005  # of a processor: less is what it takes to look again and again whether something has come
SAVING_PATIENCE = 3.0
ASLEEP_S = 10.0


@dataclass(frozen=True, slots=True)
class _Stand:
    """Where a worker stood, and since when."""

    vitals: Vitals
    since_s: float

    def has_moved(self, now: Vitals, now_s: float) -> bool:
        computed_s = now.figures.get(TRAINING_S, 0.0) - self.vitals.figures.get(TRAINING_S, 0.0)
        return _steps(now) != _steps(self.vitals) or computed_s > MOVING_SHARE * (now_s - self.since_s)


def _steps(vitals: Vitals) -> tuple[float, ...]:
    return vitals.clock, vitals.num_sent, vitals.figures.get("met", 0.0)


class Standstill:
    """Look about once a second. `now` tells the time in seconds."""

    def __init__(self, limit_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._now = limit_s, now
        self._stands: dict[int, _Stand] = {}
        self._looked_s = now()

    def look(self, vitals: Mapping[int, Vitals]) -> tuple[int, ...]:
        """The ranks that hang; none if nobody does, or it cannot be told."""
        now_s = self._now()
        if now_s - self._looked_s > ASLEEP_S:
            self._stands.clear()
        self._looked_s = now_s
        training = {rank: entry for rank, entry in vitals.items() if TRAINING_S in entry.figures}
        for rank, entry in training.items():
            stand = self._stands.get(rank)
            if stand is None or stand.has_moved(entry, now_s):
                self._stands[rank] = _Stand(entry, now_s)
        hanging = tuple(rank for rank, entry in training.items() if self._hangs(rank, entry, now_s))
        others = {rank: entry for rank, entry in training.items() if rank not in hanging}
        if not others or any(not entry.waits_for or entry.waited_s < self._limit_s for entry in others.values()):
            return ()
        awaited = {other for rank in others for other in waited_for(rank, vitals)}
        return hanging if awaited.issuperset(hanging) else ()

    def _hangs(self, rank: int, entry: Vitals, now_s: float) -> bool:
        is_saving = rank == 0 and bool(entry.figures.get(SAVING))  # the others begin snapshots too, and write nothing
        patience = SAVING_PATIENCE if is_saving else 1.0
        return not entry.waits_for and now_s - self._stands[rank].since_s > patience * self._limit_s
