"""Updates in managed mode (`--consistency ssp-managed`): workers apply the rule themselves, and push what it changed.

Momentum and other histories are each worker's own. A snapshot gets their mean over workers, and every worker goes on
from that when it is restored. Values live in lazy tables of rows (comm/stale/lazy.py), which leave by importance within
a budget (comm/stale/managed.py).

What the solver's loop sees is the protocol of `poseidon/solver/updates.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from poseidon.comm import Taps
from poseidon.comm.events import CommListener
from poseidon.comm.exchange import Wiring
from poseidon.comm.part import Member, members_of
from poseidon.comm.stale.hub import Hub
from poseidon.comm.stale.layout import TableSpec
from poseidon.comm.stale.managed import Managed, ManagedOptions, PerClock, RowOrder, allowance_of
from poseidon.comm.stale.message import Kind, Message, as_bytes
from poseidon.comm.stale.outgoing import ORDINARY
from poseidon.comm.stale.protocol import Entry, Mode
from poseidon.comm.stale.row_units import RowExchange, RowScheduler, RowTable, rows_and_width
from poseidon.comm.stale.shard import Addition
from poseidon.comm.stale.table import Serving, open_table
from poseidon.plan import CommPlan, Scheme, Unit
from poseidon.run.options import DistributeOptions
from poseidon.run.rule_site import RuleSite
from poseidon.solver import Solver
from poseidon.solver.clip import Clipping
from poseidon.solver.rules import Hyper

# Tensors that all workers have alike, averaged over them; all call it together.
Mean = Callable[[Sequence[Tensor]], list[Tensor]]
_NAMES = {torch.float32: "float32", torch.float64: "float64"}


class ManagedUpdates:
    """The solver's `updates` on one of P workers. `close` it when training is over. `staleness` is in clocks."""

    def __init__(
        self,
        solver: Solver,
        plan: CommPlan,
        hub: Hub,
        staleness: int,
        mean: Mean,
        *,
        averages: bool = True,
        listener: CommListener | None = None,
    ) -> None:
        self.plan, self.hub, self._solver, self._mean = plan, hub, solver, mean
        self._staleness = staleness
        self._still = [name for unit in plan.units if unit.scheme is Scheme.LOCAL for name in unit.params]
        self._site = RuleSite(solver.rule, solver.slots, [], hub.transport)
        self._parameters = {f"{entry.layer}/{entry.index}": entry.value for entry in solver.net.learnable}
        self._tables: list[RowTable] = []
        self.exchanges = [self._exchange(unit) for unit in plan.units if unit.scheme is not Scheme.LOCAL]
        for table in self._tables:
            self._open(table)
        outgoing = hub.outgoing
        budget = outgoing.allowance if isinstance(outgoing, Managed) else None
        self.scheduler = RowScheduler(
            plan,
            self.exchanges,
            hub,
            staleness,
            listener,
            apply=self._site.apply,
            share=1 / hub.num_workers if averages else 1.0,
            ticked=budget.tick if isinstance(budget, PerClock) else _nothing,
        )
        self.carriers = hub.kind
        self._taps = Taps(solver.net, self.exchanges, self.scheduler)
        self._hyper: Hyper | None = None
        self.waited_s = 0.0  # for anything but parameters

    # -- tables -----------------------------------------------------------------------------------------------------
    def _exchange(self, unit: Unit) -> RowExchange:
        members = members_of([(name, self._parameters[name]) for name in unit.params])
        own = [RowTable(self.hub, self._spec(unit, member, place), member) for place, member in enumerate(members)]
        self._tables += own
        return RowExchange(Wiring(unit, members, self.hub.transport, self.plan.order), own)

    def _spec(self, unit: Unit, member: Member, place: int) -> TableSpec:
        num_rows, width = rows_and_width(member.parameter.shape)
        return TableSpec(
            index=len(self._tables) + place,
            name=member.name,
            num_rows=num_rows,
            width=width,
            num_workers=self.hub.num_workers,
            owners=self.hub.owners,
            dtype=_NAMES[member.parameter.dtype],
            staleness=self._staleness,
            mode=Mode.MANAGED,
            entry=Entry.ON_ARRIVAL if self._staleness else Entry.WHOLE_CLOCKS,
            priority=ORDINARY + unit.index,  # what the next forward pass needs first goes first
        )

    def _open(self, table: RowTable) -> None:
        values = table.values()
        table.cache.seed(values, 0)
        open_table(self.hub, table.spec, table.cache, Serving(Addition(), "", values))

    # -- the solver's protocol --------------------------------------------------------------------------------------
    def begin(self) -> None:
        self._taps.begin()

    def start(self, hyper: Hyper) -> None:
        self._hyper = hyper
        self._taps.arm(hyper)

    def finish(self) -> Clipping | None:
        assert self._hyper is not None, "start comes before finish"
        self._taps.complete()
        self._site.apply_still(self._still, self._hyper)
        return None

    def drain(self) -> None:
        self.scheduler.drain()

    def histories(self) -> list[Tensor]:
        """The mean over workers, at rank 0; the others get none. All call it."""
        own = self._own_histories()
        means = self._mean(own) if own else []
        if self.hub.rank != 0:
            return []
        return [mean.to(one.dtype).view(one.shape) for mean, one in zip(means, own, strict=True)]

    def restore_histories(self, histories: Sequence[Tensor]) -> None:
        self._site.restore(histories)

    def begin_anew(self) -> None:
        """Tables take over what is in the parameters. All workers call it after `drain`, then meet."""
        for table in self._tables:
            values, spec = table.values(), table.spec
            with self.hub.lock:
                clock = int(table.cache.versions[0])
                table.cache.seed(values, clock)
            for part, span in enumerate(spec.spans):
                if span.owner == self.hub.rank or (self.hub.rank == 0 and span.owner >= self.hub.num_workers):
                    payload = as_bytes(values[span.first : span.last].clone())
                    self.hub.post([(span.owner, Message(Kind.SEED, spec.index, part, clock, payload=payload))])
                    self.hub.recall(spec, part, 0)  # answered behind the seed
        self.scheduler.begin_anew()

    def hand_back(self) -> None:
        """Makes the solver whole, so that somebody else can apply its updates. All workers call it, after `drain`."""
        means = self._mean(self._own_histories())
        slots = self._solver.slots
        for place, slot in enumerate(slots):
            own = means[place :: len(slots)]
            slots[place] = replace(
                slot, history=tuple(m.to(h.dtype).view(h.shape) for m, h in zip(own, slot.history, strict=True))
            )

    def _own_histories(self) -> list[Tensor]:
        """In the order of Caffe's files."""
        slots, count = self._solver.slots, self._solver.rule.num_histories
        return [slot.history[k] for k in range(count) for slot in slots]

    def wire_state(self) -> dict[str, Tensor]:
        """Nothing is owed when all is drained."""
        return {}

    def restore_wire_state(self, state: Mapping[str, Tensor]) -> None:
        """Nothing was owed."""

    def close(self, *, wait: bool = True) -> None:
        """`wait`: until all workers close theirs; servers are needed until then."""
        self._taps.close()
        self.hub.close(wait=wait)


def managed_outgoing(options: DistributeOptions, seed: int) -> Managed:
    """Which message leaves next, as the options say, in managed mode and, by urgency alone, in the others."""
    order = ManagedOptions(RowOrder(options.row_order), options.half_rows, seed % 2**32)
    return Managed(allowance_of(options.limit_bps), order)


def _nothing() -> None:
    """Budgets by time need no ticks."""
