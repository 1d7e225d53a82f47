"""Effort: what a worker has done so far; and how rank 0 hears of all workers' without anybody sending a message more.

Losses and outputs that are shown are averaged over workers: everybody comes together for that anyway. A worker's effort
travels along, as a row of its own in a table that is zero elsewhere: P times the mean of these tables has all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from poseidon.record import WorkerFigures
from poseidon.solver.team import Team


@dataclass(frozen=True, slots=True)
class Effort:
    """Since the start: all of it ever growing. Tests and snapshots do not count."""

    iterations: int = 0
    compute_s: float = 0.0
    wait_s: float = 0.0
    sent_bytes: float = 0.0
    received_bytes: float = 0.0
    staleness: float = 0.0  # the sum over iterations of what each has seen, in clocks

    def figures_since(self, before: Effort, rank: int) -> WorkerFigures | None:
        """Per iteration; None if there was none."""
        count = self.iterations - before.iterations
        if count <= 0:
            return None
        return WorkerFigures(
            rank,
            (self.compute_s - before.compute_s) / count,
            (self.wait_s - before.wait_s) / count,
            (self.sent_bytes - before.sent_bytes) / count,
            (self.received_bytes - before.received_bytes) / count,
            (self.staleness - before.staleness) / count,
        )


class EffortTeam:
    """A team whose means carry efforts along; `own` tells this worker's. `efforts` are all workers', by rank."""

    def __init__(self, team: Team, size: int, own: Callable[[], Effort]) -> None:
        self.rank = team.rank
        self.agree, self.level, self.meet = team.agree, team.level, team.meet
        self.deal, self.state, self.restore = team.deal, team.state, team.restore
        self.efforts: tuple[Effort, ...] = (Effort(),) * size
        self.inner, self._size, self._own = team, size, own

    def mean(self, values: Sequence[Tensor]) -> list[Tensor]:
        own = torch.tensor(astuple(self._own()), dtype=torch.float64)
        table = torch.zeros(self._size, own.numel(), dtype=torch.float64)
        table[self.rank] = own
        *means, shares = self.inner.mean([*values, table])
        self.efforts = tuple(_effort(row) for row in (shares * self._size).tolist())
        return means


def _effort(row: list[Any]) -> Effort:
    return Effort(round(row[0]), *row[1:])
