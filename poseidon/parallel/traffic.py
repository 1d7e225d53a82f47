"""Traffic: one plan in operation between this worker's gradients and the others'.

The exchanges and the scheduler are those of the Caffe runtime; all that is particular here is that factors come in any
number (free_factors.py), and that every worker gets every averaged gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from poseidon.comm import Exchange, Member, Part, Scheduler
from poseidon.comm.exchange import Wiring
from poseidon.comm.factors import FactorLayout
from poseidon.comm.free_factors import FreeFactors
from poseidon.comm.part import members_of
from poseidon.comm.power import PowerSgd
from poseidon.comm.rows import Rows
from poseidon.comm.threads import Threads
from poseidon.comm.wiring import dense_exchange
from poseidon.parallel.round import Round
from poseidon.parallel.structure import Structure
from poseidon.plan import CommPlan, Scheme
from poseidon.transport import Transport


@dataclass(frozen=True, slots=True)
class Agreed:
    """A plan, and what goes with it on all workers alike: rows of factors to make room for, by weight; the rank of
    approximations."""

    plan: CommPlan
    num_rows: Mapping[str, int]
    power_rank: int = 0


class Traffic:
    """`sparse` are the tables whose gradients are wanted as rows. `close` it when another plan takes its place."""

    def __init__(
        self, agreed: Agreed, structure: Structure, transport: Transport, sparse: frozenset[str], threads: Threads
    ) -> None:
        self.plan, self.sparse = agreed.plan, sparse
        self.exchanges: list[Exchange] = []
        for unit in self.plan.units:
            if unit.scheme is not Scheme.LOCAL:
                members = members_of([(name, structure.params[name].parameter) for name in unit.params])
                wiring = Wiring(unit, members, transport, self.plan.order)
                self.exchanges.append(_exchange(wiring, agreed, threads))
        self.of: dict[str, tuple[Exchange, Member]] = {
            member.name: (exchange, member) for exchange in self.exchanges for member in exchange.members
        }
        # What waits for all gradients waits in the compute thread: the scheduler has nothing to hold back.
        self.scheduler = Scheduler(replace(self.plan, barrier=False), self.exchanges, self._apply)

    def _apply(self, parts: Sequence[Part], round_: Round) -> None:
        round_.take(parts)

    def state(self) -> dict[str, dict[str, Tensor]]:
        """What this worker still owes the others, by the names of a unit's parameters."""
        states = {" ".join(exchange.unit.params): exchange.state() for exchange in self.exchanges}
        return {names: state for names, state in states.items() if state}

    def restore(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Goes on from what `state` gave; units that another plan has put together otherwise begin anew."""
        for exchange in self.exchanges:
            exchange.restore(state.get(" ".join(exchange.unit.params), {}))

    def close(self) -> None:
        self.scheduler.close()


def _exchange(wiring: Wiring, agreed: Agreed, threads: Threads) -> Exchange:
    first = wiring.members[0].name
    if wiring.unit.scheme.is_dense:
        return dense_exchange(wiring, agreed.plan.wire)
    if wiring.unit.scheme is Scheme.FACTORS:
        return FreeFactors(wiring, FactorLayout(agreed.num_rows[first]), threads)
    if wiring.unit.scheme is Scheme.POWER_SGD:
        return PowerSgd(wiring, agreed.power_rank, threads)
    assert wiring.unit.scheme is Scheme.ROWS, f"{wiring.unit.scheme} is not among the schemes that were asked for"
    table = Rows(wiring)
    table.gives_rows = True
    return table
