"""The solver's team on one of P workers (poseidon/solver/team.py says what that is)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from poseidon.net.net import Net
from poseidon.run.agreement import Agreement
from poseidon.run.dealing import Way, WorkerDeal
from poseidon.run.roundtable import Roundtable
from poseidon.run.worker_states import WorkerStates
from poseidon.solver import Action
from poseidon.solver.team import Deal


class WorkerTeam:
    """`ways` says how the batches of each test net are dealt out; `level` makes replicas alike."""

    def __init__(
        self,
        table: Roundtable,
        agreement: Agreement,
        ways: dict[Net, Way],
        level: Callable[[], None],
        states: WorkerStates,
    ) -> None:
        self.rank = table.rank
        self._table = table
        self._agreement = agreement
        self._ways = ways
        self._level = level
        self._states = states

    def mean(self, values: Sequence[Tensor]) -> list[Tensor]:
        return self._table.mean(values)

    def agree(self, request: Action, *, testing: bool) -> Action:
        return self._agreement.turn(request, testing=testing)

    def level(self) -> None:
        self._level()

    def deal(self, net: Net, num_batches: int) -> Deal:
        return WorkerDeal(net, num_batches, self._ways[net], self._table)

    def meet(self) -> None:
        self._table.meet()

    def state(self) -> Any:
        return self._states.state()

    def restore(self, state: Any) -> None:
        self._states.restore(state)
