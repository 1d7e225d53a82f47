"""Updates under bounded staleness: gradients go to the servers of tables, values come back at most s clocks old.

What the solver's loop sees is the protocol of `poseidon/solver/updates.py`. With staleness 0 an iteration reads what
all workers together have made of the one before: the trajectory of one worker with the P-fold batch, to rounding.

    staleness, consistency   by how many clocks values may be behind, and how they come (comm/stale/protocol.py)
    serving                  the transport of all processes, where some of them only serve; else the workers' own
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from poseidon.comm import Taps
from poseidon.comm.events import CommListener
from poseidon.comm.exchange import Wiring
from poseidon.comm.factors import FactorLayout
from poseidon.comm.part import Member, members_of
from poseidon.comm.stale.hub import Hub, HubOptions
from poseidon.comm.stale.layout import TableSpec
from poseidon.comm.stale.message import Kind, Message, as_bytes
from poseidon.comm.stale.outgoing import ORDINARY, MessageScheduler
from poseidon.comm.stale.protocol import Mode
from poseidon.comm.stale.scheduler import StaleScheduler
from poseidon.comm.stale.table import Serving, open_table
from poseidon.comm.stale.units import FlatTable, SliceTable, TableDense, TableFactors, UnitTable, cuts_outputs
from poseidon.comm.wiring import factor_layout
from poseidon.errors import PlanError, UsageError
from poseidon.net.layers.embed import Embed
from poseidon.plan import STALE_SCHEMES, CommPlan, Scheme, Unit
from poseidon.run.rule_site import RuleSite
from poseidon.run.stale_rule import RuleUpdate, rule_text, shard_from
from poseidon.solver import Solver
from poseidon.solver.clip import Clipping
from poseidon.solver.rules import Hyper
from poseidon.transport import Transport

_NAMES = {torch.float32: "float32", torch.float64: "float64"}


@dataclass(frozen=True, slots=True)
class Staleness:
    """By how many clocks workers may be apart, and how values come to them."""

    clocks: int = 0
    mode: Mode = Mode.PUSH
    num_servers: int = 0


class StaleUpdates:
    """The solver's `updates` on one of P workers. `close` it when training is over."""

    def __init__(
        self,
        solver: Solver,
        plan: CommPlan,
        hub: Hub,
        staleness: Staleness,
        *,
        averages: bool = True,
        listener: CommListener | None = None,
    ) -> None:
        self.plan, self.hub, self._solver = plan, hub, solver
        self._staleness = staleness
        self._divisor = hub.num_workers if averages else 1
        self._still = [name for unit in plan.units if unit.scheme is Scheme.LOCAL for name in unit.params]
        self._site = RuleSite(solver.rule, solver.slots, [], hub.transport)
        self._parameters = {f"{entry.layer}/{entry.index}": entry.value for entry in solver.net.learnable}
        self._num_tables = 0
        self.exchanges = [self._exchange(unit) for unit in plan.units if unit.scheme is not Scheme.LOCAL]
        self._tables = [table for exchange in self.exchanges for table in exchange.tables()]
        self._restored: list[Tensor] | None = None
        for table in self._tables:
            self._open(table)
        self._seed_histories(self._slot_histories())
        self._release_slots()
        behind = "exact" if staleness.clocks == 0 else f"at most {staleness.clocks} behind"
        self.carriers = f"{hub.kind}, {staleness.mode.value}, {behind}"
        self.scheduler = StaleScheduler(plan, self.exchanges, hub, staleness.clocks, listener)
        self._taps = Taps(solver.net, self.exchanges, self.scheduler)
        self._hyper: Hyper | None = None
        self.waited_s = 0.0  # for anything but parameters

    # -- tables -----------------------------------------------------------------------------------------------------
    def _exchange(self, unit: Unit) -> TableDense | TableFactors:
        members = members_of([(name, self._parameters[name]) for name in unit.params])
        wiring = Wiring(unit, members, self.hub.transport, self.plan.order)
        if unit.scheme is Scheme.SERVER:
            width = self._row_width(members)
            return TableDense(wiring, self._flat(unit, members, width))
        layout = factor_layout(self._solver.net, members, self._solver.param.iter_size)
        biases = self._flat(unit, members[1:]) if len(members) > 1 else None
        return TableFactors(wiring, layout, self._slices(unit, members[0], layout), biases)

    def _flat(self, unit: Unit, members: Sequence[Member], width: int = 1) -> FlatTable:
        num_elems = sum(member.num_elems for member in members)
        return FlatTable(self._spec(unit, members[0], num_elems // width, width), members)

    def _row_width(self, members: Sequence[Member]) -> int:
        """Of the table of an Embed layer, of whose gradient most rows may be zeros; 1 of everything else."""
        tables = [node.layer.param_owner(0) for node in self._solver.net.graph.nodes if isinstance(node.layer, Embed)]
        (first, *others) = (member.parameter for member in members)
        return first.shape[1] if not others and any(first is table for table in tables) else 1

    def _slices(self, unit: Unit, weight: Member, layout: FactorLayout) -> SliceTable:
        rows, columns = weight.parameter.shape
        is_transposed = weight.name in layout.transposed
        outputs, inputs = (columns, rows) if is_transposed else (rows, columns)
        axis = int(cuts_outputs(outputs, inputs) == is_transposed)
        spec = self._spec(unit, weight, max(rows, columns), min(rows, columns))
        return SliceTable(replace(spec, is_whole=True), [weight], axis)

    def _spec(self, unit: Unit, member: Member, num_rows: int, width: int) -> TableSpec:
        self._num_tables += 1
        return TableSpec(
            index=self._num_tables - 1,
            name=member.name,
            num_rows=num_rows,
            width=width,
            num_workers=self.hub.num_workers,
            owners=self.hub.owners,
            dtype=_NAMES[member.parameter.dtype],
            staleness=self._staleness.clocks,
            mode=self._staleness.mode,
            adds=False,
            priority=ORDINARY + unit.index,  # what the next forward pass needs first goes first
        )

    def _open(self, table: UnitTable) -> None:
        values = table.values()
        table.cache.seed(values, 0)
        text = rule_text(self._solver, table, self._divisor)
        open_table(self.hub, table.spec, table.cache, Serving(RuleUpdate(table.spec, text), text, values))

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
        if self.hub.rank != 0:
            return []
        return self._all_histories()

    def restore_histories(self, histories: Sequence[Tensor]) -> None:
        """They reach the servers with `begin_anew`, which all workers call together."""
        self._restored = [history.clone() for history in histories]
        self._site.restore(histories)

    # -- histories --------------------------------------------------------------------------------------------------
    def _all_histories(self) -> list[Tensor]:
        """In the order of Caffe's files, gathered from the servers. Nothing is on its way."""
        if self._restored is not None:
            return self._restored
        count = self._solver.rule.num_histories
        found = {slot.name: list(slot.history) for slot in self._solver.slots if slot.history}
        for table in self._tables:
            for number in range(1, count + 1):
                pieces = [torch.empty_like(member.value) for member in table.members]
                for part, span in enumerate(table.spec.spans):
                    rows = self.hub.recall(table.spec, part, number).payload.clone().view(table.spec.torch_dtype)
                    table.put(rows.view(-1, table.spec.width), span.first, pieces)
                for member, piece in zip(table.members, pieces, strict=True):
                    found.setdefault(member.name, []).append(piece)
        return [found[slot.name][k] for k in range(count) for slot in self._solver.slots]

    def _slot_histories(self) -> list[Tensor]:
        slots, count = self._solver.slots, self._solver.rule.num_histories
        return [slot.history[k] for k in range(count) for slot in slots]

    def _release_slots(self) -> None:
        """Histories of what servers update live there alone."""
        served = {member.name for table in self._tables for member in table.members}
        slots = self._solver.slots
        slots[:] = [replace(slot, history=()) if slot.name in served else slot for slot in slots]

    def _seed_histories(self, histories: Sequence[Tensor]) -> None:
        places = {slot.name: place for place, slot in enumerate(self._solver.slots)}
        num_slots = len(self._solver.slots)
        for table in self._tables:
            for number in range(1, self._solver.rule.num_histories + 1):
                start = (number - 1) * num_slots
                own = [histories[start + places[member.name]] for member in table.members]
                self._seed(
                    table, number, table.lay_out([_shaped(h, m) for h, m in zip(own, table.members, strict=True)])
                )

    def _seed(self, table: UnitTable, number: int, laid_out: Tensor) -> None:
        """Gives servers of a table its values (0) or histories; each worker its own, ranks that only serve rank 0's."""
        spec, hub = table.spec, self.hub
        rows = laid_out.view(spec.num_rows, spec.width)
        clock = int(table.cache.versions[0])
        for part, span in enumerate(spec.spans):
            if span.owner == hub.rank or (hub.rank == 0 and span.owner >= hub.num_workers):
                payload = as_bytes(rows[span.first : span.last].clone())
                hub.post([(span.owner, Message(Kind.SEED, spec.index, part, clock, number, payload=payload))])

    def begin_anew(self) -> None:
        """Tables take over what is in the parameters, and restored histories. All workers call it, then meet."""
        for table in self._tables:
            values = table.values()
            with self.hub.lock:
                table.cache.seed(values, int(table.cache.versions[0]))
            self._seed(table, 0, values)
        if self._restored is not None:
            self._seed_histories(self._restored)
            self._restored = None
        for table in self._tables:
            for part, span in enumerate(table.spec.spans):
                if span.owner == self.hub.rank or self.hub.rank == 0:
                    self.hub.recall(table.spec, part, 0)  # answered behind the seeds
        self.scheduler.begin_anew()

    def hand_back(self) -> None:
        """Makes the solver whole, so that somebody else can apply its updates. All workers call it, after `drain`."""
        histories = self._all_histories()
        slots = self._solver.slots
        slots[:] = [replace(slot, history=tuple(histories[place :: len(slots)])) for place, slot in enumerate(slots)]

    def wire_state(self) -> dict[str, Tensor]:
        """Nothing is owed: what travels is whole."""
        return {}

    def restore_wire_state(self, state: Mapping[str, Tensor]) -> None:
        """Nothing was owed."""

    def close(self, *, wait: bool = True) -> None:
        """`wait`: until all workers close theirs; servers are needed until then."""
        self._taps.close()
        self.hub.close(wait=wait)


def _shaped(history: Tensor, member: Member) -> Tensor:
    """A history laid out in memory like its parameter."""
    return torch.empty_like(member.value).copy_(history.view(member.value.shape))


def check_stale(solver: Solver, plan: CommPlan) -> None:
    """Refuses what has no meaning under staleness."""
    if plan.barrier:
        raise UsageError(
            "clip_gradients needs all gradients of an iteration at once, which servers of single parts never have: "
            "leave it out, or train without --staleness"
        )
    for unit in plan.units:
        if unit.scheme not in (*STALE_SCHEMES, Scheme.LOCAL):
            raise PlanError(
                f"{unit.params[0]} goes by {unit.scheme.value} in the plan, but under staleness everything has servers "
                f"({', '.join(scheme.value for scheme in STALE_SCHEMES)}): make a new plan"
            )
    for entry in solver.net.learnable:
        if entry.value.dtype not in _NAMES:
            raise UsageError(f"tables hold float32 or float64, but {entry.layer}/{entry.index} is {entry.value.dtype}")


def open_hub(transport: Transport, staleness: Staleness, outgoing: MessageScheduler | None = None) -> Hub:
    """This process's hub, worker or server; all processes call it together."""
    return Hub(transport, HubOptions(staleness.num_servers, outgoing, make_shard=shard_from))
