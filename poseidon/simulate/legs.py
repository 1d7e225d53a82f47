"""Legs: what every Send of a plan is made of, as the runtime carries it out.

    push    stages one after another, each of collectives side by side; before them, workers of a node combine in memory
    apply   on the device
    pull    as push, for values that owners have updated; afterwards in memory to all workers of a node

    RING            all-reduce                                    apply everywhere
                    narrow: push of shards, then gather
    DOUBLING        in pairs, where workers have nodes to themselves; else as RING
    SERVER          push of shards                                apply at owners    gather
    FACTORS         gather of the rows that the Send carries      with the last one that arrives, rows are put together
                                                                  by the processor; rebuild and apply
    FACTOR_SERVER   gather of the whole factor (first Send only)
                    beside a push of slices                       apply at owners    gather
    ROWS            gather of rows                                apply everywhere
    POWER_SGD       gather of one side, then of the other         apply everywhere

Bytes and what goes through a node's memory: formulas on top of plan/cost.py. Every Send besides takes `send_s` of the
worker's own time when it is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from poseidon.plan import CommPlan, CostModel, NetProfile, Scheme, Send, Unit
from poseidon.plan.bundles import load_of
from poseidon.plan.cost import ROW_NUMBER_BYTES
from poseidon.plan.turns import patience_s
from poseidon.simulate.waves import Collective, gathered, pushed, pushed_evenly, summed_around, summed_in_pairs

COUNT_BYTES = 8  # how many rows of a table come
Stage = tuple[Collective, ...]


@dataclass(frozen=True, slots=True)
class Leg:
    """Stages, and bytes through a node's memory before and after them."""

    stages: tuple[Stage, ...] = ()
    before_bytes: float = 0.0
    after_bytes: float = 0.0

    @property
    def is_empty(self) -> bool:
        return not self.stages and not self.before_bytes and not self.after_bytes


@dataclass(frozen=True, slots=True)
class Trip:
    """A Send: its legs, and the device's seconds in between.

    With the last of the unit's Sends to arrive, whichever that is, come `last_bytes` for the processor and `last_s`
    more for the device. `patience_s`: how long a leg may take before others start beside it. `is_pulled`: owners hand
    out new values.
    """

    send: Send
    chunk: int
    push: Leg
    pull: Leg
    apply_s: float
    patience_s: float
    last_bytes: float = 0.0
    last_s: float = 0.0
    is_pulled: bool = False

    @property
    def collectives(self) -> tuple[Collective, ...]:
        return tuple(collective for leg in (self.push, self.pull) for stage in leg.stages for collective in stage)


def trips_of(plan: CommPlan, profile: NetProfile, *, stride: int = 1) -> tuple[Trip, ...]:
    """The plan's Sends in their order."""
    makers = {unit.index: _Maker(plan, profile, unit, stride) for unit in plan.units if unit.scheme is not Scheme.LOCAL}
    counts = dict.fromkeys(makers, 0)
    trips = []
    for send in plan.order:
        trips.append(makers[send.unit].trip(send, counts[send.unit]))
        counts[send.unit] += 1
    return tuple(trips)


class _Maker:
    """Makes the trips of one unit."""

    def __init__(self, plan: CommPlan, profile: NetProfile, unit: Unit, stride: int) -> None:
        self.plan, self.cluster = plan, plan.cluster
        self.unit, self.stride = unit, stride
        model = CostModel(plan.cluster, plan.wire, plan.pattern)
        self.load = load_of(unit, {param.name: param for param in profile.params})
        self.elem_bytes = self.load.elem_bytes
        self.wire_bytes = model.wire_bytes(self.load)
        self.apply_s = model.cost(unit.scheme, self.load).apply_s
        self.send_s = model.send_s(unit.scheme)
        self.most_workers = max(plan.cluster.node_workers)
        self._is_even = len(set(plan.cluster.node_workers)) == 1
        self._known: dict[tuple[object, ...], Collective] = {}

    def trip(self, send: Send, chunk: int) -> Trip:
        share = (send.stop - send.start) / self.unit.num_elems
        push, pull = _LEGS[self.unit.scheme](self, send)
        leg_s = patience_s(self.plan, send)
        if self.unit.scheme is Scheme.FACTORS:  # one product for all rows
            rows_bytes = self.cluster.num_workers * self._factor_bytes(0, self.load.num_rows)
            return Trip(send, chunk, push, pull, self.send_s, leg_s, rows_bytes, self.apply_s)
        apply_s = self.apply_s * share + self.send_s
        return Trip(send, chunk, push, pull, apply_s, leg_s, is_pulled=self.unit.scheme.has_owners)

    # -- schemes ----------------------------------------------------------------------------------------------------
    def ring(self, send: Send) -> tuple[Leg, Leg]:
        before, after = self._dense_memory(send)
        if self.wire_bytes < self.elem_bytes:
            stages = self._stages(self._push_shards(send)) + self._stages(self._gather_shards(send))
            return Leg(stages, before, after), Leg()
        num_bytes = (send.stop - send.start) * self.elem_bytes
        return Leg(self._stages(self._sum(num_bytes)), before, after), Leg()

    def doubling(self, send: Send) -> tuple[Leg, Leg]:
        if self.most_workers > 1:
            return self.ring(send)
        num_bytes = float((send.stop - send.start) * self.elem_bytes)
        return Leg(self._stages(summed_in_pairs(self.cluster.num_nodes, num_bytes))), Leg()

    def server(self, send: Send) -> tuple[Leg, Leg]:
        before, after = self._dense_memory(send)
        return Leg(self._stages(self._push_shards(send)), before), Leg(
            self._stages(self._gather_shards(send)), 0, after
        )

    def factors(self, send: Send) -> tuple[Leg, Leg]:
        each = self._factor_bytes(*send.rows(self.unit.num_elems, self.load.num_rows))
        return Leg(self._stages(self._gather_blocks(each)), self._once_if_shared(each)), Leg()

    def factor_server(self, send: Send) -> tuple[Leg, Leg]:
        larger, smaller = self.load.num_slices, self.load.slice_elems
        first = min(send.start // smaller, larger)
        last = larger if send.stop == self.unit.num_elems else min(send.stop // smaller, larger)
        row_bytes = self.load.num_rows * self.elem_bytes
        side_by_side = [self._push_each(row_bytes * (last - first) / self.cluster.num_workers)]
        copied = row_bytes * (last - first)
        if send.start == 0:
            side_by_side.insert(0, self._gather_blocks(row_bytes * smaller))
            copied += row_bytes * smaller
        values = (last - first) * smaller * self.wire_bytes / self.cluster.num_workers
        pulls = [self._gather_blocks(values)]
        if self._bias_has_owners:
            pulls.append(self._gather_blocks((last - first) * self.wire_bytes / self.cluster.num_workers))
        read = self._once_if_shared((last - first) * smaller * self.elem_bytes)
        push = Leg(self._stages(*side_by_side), self._once_if_shared(copied))
        return push, Leg(self._stages(*pulls), 0.0, read)

    def rows(self, send: Send) -> tuple[Leg, Leg]:
        assert self.load.rows is not None
        row_bytes = self.elem_bytes * self.load.rows.width + ROW_NUMBER_BYTES
        touched = [min(workers * self.load.rows.touched, self.load.rows.total) for workers in self.cluster.node_workers]
        tables = self._gather([float(COUNT_BYTES + number * row_bytes) for number in touched])
        local = self._once_if_shared(self.load.rows.touched * row_bytes)
        return Leg(self._stages(tables), local, local), Leg()

    def power_sgd(self, send: Send) -> tuple[Leg, Leg]:
        assert self.load.power is not None
        sides = [self.elem_bytes * self.load.power.rows * n for n in (self.load.power.outputs, self.load.power.inputs)]
        stages = tuple(stage for side in sides for stage in self._stages(self._gather_blocks(side)))
        return Leg(stages, self._once_if_shared(sum(sides))), Leg()

    # -- what they are made of --------------------------------------------------------------------------------------
    @property
    def _bias_has_owners(self) -> bool:
        """Whether a bias's elements go with slices: where the outputs are what is cut."""
        (factors,) = self.load.factors
        return factors.outputs >= factors.inputs and self.unit.num_elems > factors.outputs * factors.inputs

    def _factor_bytes(self, first: int, last: int) -> float:
        """Of rows of one worker's factors."""
        return (last - first) * self.load.row_elems * self.elem_bytes

    def _stages(self, *collectives: Collective | None) -> tuple[Stage, ...]:
        found = tuple(collective for collective in collectives if collective is not None)
        return (found,) if found else ()

    def _sum(self, num_bytes: float) -> Collective | None:
        if self.cluster.num_nodes == 1:
            return None
        return self._cached(
            ("sum", num_bytes), lambda: summed_around(self.cluster.num_nodes, num_bytes, stride=self.stride)
        )

    def _push_shards(self, send: Send) -> Collective | None:
        """A node's sum of every shard to the node of its owner."""
        shard = (send.stop - send.start) * self.wire_bytes / self.cluster.num_workers
        if self._is_even:
            return self._push_evenly(shard * self.most_workers)
        return self._push([[shard * workers for workers in self.cluster.node_workers]] * self.cluster.num_nodes)

    def _push_each(self, worker_bytes: float) -> Collective | None:
        """So many bytes from every worker to every worker of other nodes."""
        workers = self.cluster.node_workers
        if self._is_even:
            return self._push_evenly(worker_bytes * self.most_workers**2)
        return self._push([[worker_bytes * own * other for other in workers] for own in workers])

    def _gather_shards(self, send: Send) -> Collective | None:
        return self._gather_blocks((send.stop - send.start) * self.wire_bytes / self.cluster.num_workers)

    def _gather_blocks(self, worker_bytes: float) -> Collective | None:
        return self._gather([worker_bytes * workers for workers in self.cluster.node_workers])

    def _gather(self, blocks: Sequence[float]) -> Collective | None:
        if self.cluster.num_nodes == 1 or not any(blocks):
            return None
        return self._cached(("gather", *blocks), lambda: gathered(blocks, self.elem_bytes, stride=self.stride))

    def _push(self, blocks: Sequence[Sequence[float]]) -> Collective | None:
        if not any(map(any, blocks)):
            return None
        key = ("push", *(block for row in blocks for block in row))
        return self._cached(key, lambda: pushed(blocks, self.elem_bytes))

    def _push_evenly(self, num_bytes: float) -> Collective | None:
        if self.cluster.num_nodes == 1 or not num_bytes:
            return None
        return self._cached(
            ("push", num_bytes),
            lambda: pushed_evenly(self.cluster.num_nodes, num_bytes, self.elem_bytes, stride=self.stride),
        )

    def _cached(self, key: tuple[object, ...], make: Callable[[], Collective]) -> Collective:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def _dense_memory(self, send: Send) -> tuple[float, float]:
        """All read and the sum written, before; the sum read by all, after."""
        workers = self.most_workers
        num_bytes = (send.stop - send.start) * self.elem_bytes
        return ((workers + 1) * num_bytes, workers * num_bytes) if workers > 1 else (0.0, 0.0)

    def _once_if_shared(self, worker_bytes: float) -> float:
        return self.most_workers * worker_bytes if self.most_workers > 1 else 0.0


_LEGS: dict[Scheme, Callable[[_Maker, Send], tuple[Leg, Leg]]] = {
    Scheme.RING: _Maker.ring,
    Scheme.DOUBLING: _Maker.doubling,
    Scheme.SERVER: _Maker.server,
    Scheme.FACTORS: _Maker.factors,
    Scheme.FACTOR_SERVER: _Maker.factor_server,
    Scheme.ROWS: _Maker.rows,
    Scheme.POWER_SGD: _Maker.power_sgd,
}
