"""The solver's team on one of P workers (poseidon/solver/team.py says what that is)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from poseidon.net.net import Net
from poseidon.run.agreement import Agreement
from poseidon.run.dealing import Way, WorkerDeal
from poseidon.run.roundtable import Roundtable
from poseidon.solver import Action
from poseidon.solver.team import Deal


class Replica(Protocol):
    """What the team asks of whoever keeps this worker's replica."""

    def level(self) -> None: ...

    def state(self) -> Any: ...

    def restore(self, state: Any) -> None: ...


class WorkerTeam:
    """`ways` says how the batches of each test net are dealt out."""

    def __init__(self, table: Roundtable, agreement: Agreement, ways: Mapping[Net, Way], replica: Replica) -> None:
        self.rank = table.rank
        self.mean, self.meet = table.mean, table.meet
        self.level, self.state, self.restore = replica.level, replica.state, replica.restore
        self._table = table
        self._agreement = agreement
        self._ways = ways

    def agree(self, request: Action, *, testing: bool) -> Action:
        return request if self._table.size == 1 else self._agreement.turn(request, testing=testing)

    def deal(self, net: Net, num_batches: int) -> Deal:
        return WorkerDeal(net, num_batches, self._ways[net], self._table)
