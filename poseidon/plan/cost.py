"""What a scheme costs: bytes through a node's interface, seconds on the link, work on the device.

P workers on N nodes, g of them on this node and x = g / P. A worker sees a weight of M × N' elements of e bytes, as K
rows of factors; L = max(M, N'), S = min(M, N'). On the wire a dense element takes w bytes: w = e, or 2 where bf16 or
fp16 is asked for. Factors and rows always travel in full width. B = w · elements.

Workers of a node combine through its memory, and one copy crosses the wire. A node sends, per iteration:

    RING            2 · B · (N − 1) / N                                       all-reduce among nodes; narrow: as SERVER
    DOUBLING        e · elements · ⌈log2 P⌉                                   as RING where workers share nodes
    SERVER          B · (1 − x)  +  gather(B · x)                             push shards, pull them
    FACTORS         gather(e · g · K · (M + N'))
    FACTOR_SERVER   gather(e · g · K · S) + e · g · K · L · (1 − x)  +  gather(w · M · N' · x)
    ROWS            gather(min(g · r, total) · (e · width + 4))               a row travels with its number
    POWER_SGD       gather(e · g · r · M) + gather(e · g · r · N')            of rank r

Owners are all workers, 1/P each. gather(b) hands every node's block of b bytes around a ring of neighbours: a node
sends all blocks but its successor's, and receives all but its own. With one worker per node this is

    RING, SERVER    2 · B · (P − 1) / P
    FACTORS         e · K · (M + N') · (P − 1)
    FACTOR_SERVER   e · (P − 1) · (K · S + K · L / P)  +  w · M · N' · (P − 1) / P
    ROWS            (P − 1) · r · (e · width + 4)

Under the pattern `gpi` workers put to workers, nodes or not: SERVER and TREE send 2 · B · g · (P − g) / P, in one step
each way or in as many as the tree has levels; on each of them a worker waits for k puts, most of the time on the links
of others.

DOUBLING sums in pairs: in each of log2 P rounds two sums meet, whole and in full width, and are of twice as many
workers afterwards. Workers beyond a power of two hand theirs to a partner before, and get the sum from it after: two
messages more that follow one another. A round counts as two steps of another collective.

A bias that rides on a weight costs nothing beside that weight's factors. Several weights with as many rows may travel
as factors together, their rows side by side: bytes and products add up, messages do not.

Seconds: the wire carries max(sent, received) of the node where that is most, at β, or at the share of β that gathers
and pushes get; messages follow one another in 2 (N − 1) steps (FACTORS, ROWS: N − 1) of α, during which o of each is
the host's own. A node with several workers moves through its memory (2 g + 1) · elements · e for a dense unit (read
all, write the sum, all read it), its workers' factors once, the pulled slices g times, rows twice.

Device: FACTORS rebuilds the other workers' part of the sum, 2 · (P − 1) · K · M · N' FLOP. FACTOR_SERVER costs no more
than the local 2 · K · M · N' that it replaces. Updates: every element, or 1/P of them where owners update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from poseidon.plan.cluster import Cluster
from poseidon.plan.commplan import COLLECTIVE, GPI, Scheme
from poseidon.plan.profile import FactorShape, RowShape
from poseidon.plan.trees import tree_arity, tree_levels

ROW_NUMBER_BYTES = 4
WAKES_PER_ROUND = 2  # of DOUBLING: nothing else is under way meanwhile. Measured: a round takes twice a gather's step
# An all-reduce sends its blocks in parts: what of its steps passes while its own bytes are on the wire. Measured on 8
# hosts: 1, 4 and 16 MB take 14, 7 and 5 ms longer than their bytes alone, where the steps one after another are 18.
# Plans count on less of it: every send also costs what no model of links knows, and with 0.6 they take too many.
HIDDEN_STEPS = 0.4
# What a notified put takes of the processor, both its ends together: 127, 206 and 294 µs in three runs of 8 workers on
# 2 cores, each with plans of 40 and of 22 sends in turn.
PUT_S = 2e-4

# What a send is made of besides all-reduces: rounds; push and pull; one gather; two pushes and a pull; one gather.
_NUM_COLLECTIVES = {
    Scheme.DOUBLING: 1,
    Scheme.SERVER: 2,
    Scheme.FACTORS: 1,
    Scheme.FACTOR_SERVER: 3,
    Scheme.ROWS: 1,
    Scheme.POWER_SGD: 2,
}


@dataclass(frozen=True, slots=True)
class Load:
    """What a unit has to carry; `factors` are those of its weights, which have as many rows each."""

    num_elems: int
    elem_bytes: int
    factors: tuple[FactorShape, ...] = ()
    rows: RowShape | None = None
    power: FactorShape | None = None

    @property
    def num_rows(self) -> int:
        """Rows of factors of one worker, of all its weights alike."""
        assert len({shape.rows for shape in self.factors}) == 1, "only weights with as many rows travel as factors"
        return self.factors[0].rows

    @property
    def row_elems(self) -> int:
        """Of one row of factors: u and v of every weight, side by side."""
        return sum(shape.outputs + shape.inputs for shape in self.factors)

    @property
    def num_slices(self) -> int:
        """The larger dimension, which a FACTOR_SERVER's owners share."""
        (factors,) = self.factors
        return max(factors.outputs, factors.inputs)

    @property
    def slice_elems(self) -> int:
        """One slice of it, the least a FACTOR_SERVER can send."""
        (factors,) = self.factors
        return min(factors.outputs, factors.inputs)


@dataclass(frozen=True, slots=True)
class Phase:
    """One leg of an exchange: bytes each node sends and receives, and messages that follow one another.

    `share` is the part of the bandwidth it gets; `waited_bytes` are those that a unit waits for although they are on
    other workers' links, not this one's.
    `is_pull` marks the leg that comes after the owners' update, `is_once` what goes with a unit's first send only,
    `is_own` what is one of our own collectives, `hides_steps` what sends its bytes in parts, beside its own steps.
    """

    sent: tuple[float, ...]
    received: tuple[float, ...]
    num_steps: int
    share: float
    local_bytes: float = 0.0
    waited_bytes: float = 0.0
    is_pull: bool = False
    is_once: bool = False
    is_own: bool = True
    hides_steps: bool = False


@dataclass(frozen=True, slots=True)
class Leg:
    """A leg in seconds: `wire_s` and `local_s` for the whole unit, the others again for every send. `hidden_s` is what
    of the latency may pass while the send's own bytes are on the wire."""

    wire_s: float = 0.0
    local_s: float = 0.0
    latency_s: float = 0.0
    overhead_s: float = 0.0
    hidden_s: float = 0.0

    def __add__(self, other: Leg) -> Leg:
        return Leg(
            self.wire_s + other.wire_s,
            self.local_s + other.local_s,
            self.latency_s + other.latency_s,
            self.overhead_s + other.overhead_s,
            self.hidden_s + other.hidden_s,
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """What a unit costs by one scheme: bytes the busiest node sends, the legs, and the device's work afterwards.

    `once_s` is the wire's time for what goes with the first send, beside its share of the legs.
    """

    bytes_sent: float
    once_s: float
    push: Leg
    pull: Leg
    apply_s: float

    @property
    def push_wire_s(self) -> float:
        return self.once_s + self.push.wire_s

    @property
    def wire_s(self) -> float:
        return self.push_wire_s + self.pull.wire_s


class CostModel:
    """Costs on one cluster, with one width on the wire."""

    def __init__(self, cluster: Cluster, wire: str = "fp32", pattern: str = COLLECTIVE) -> None:
        self.cluster = cluster
        self.wire = wire
        self._puts = pattern == GPI
        self._shares = [workers / cluster.num_workers for workers in cluster.node_workers]
        self._most_workers = max(cluster.node_workers)
        self._known: dict[tuple[Scheme, Load], Cost] = {}

    def cost(self, scheme: Scheme, load: Load) -> Cost:
        """Of a whole unit."""
        known = self._known.get((scheme, load))
        if known is None:
            known = self._known[scheme, load] = self._cost(scheme, load)
        return known

    def send_s(self, scheme: Scheme) -> float:
        """What every send takes of the worker's own time."""
        if self._puts:
            others = self.cluster.num_workers - 1
            return PUT_S * {Scheme.TREE: 2, Scheme.FACTORS: others}.get(scheme, 2 * others)
        return self.cluster.send_s + _NUM_COLLECTIVES.get(scheme, 0) * self.cluster.collective_s

    def _cost(self, scheme: Scheme, load: Load) -> Cost:
        phases = _PHASES[scheme](self, load)
        sent = [math.fsum(phase.sent[node] for phase in phases) for node in range(self.cluster.num_nodes)]
        once_s = math.fsum(self._leg(phase).wire_s for phase in phases if phase.is_once)
        push = sum((self._leg(phase) for phase in phases if not (phase.is_pull or phase.is_once)), Leg())
        pull = sum((self._leg(phase) for phase in phases if phase.is_pull), Leg())
        return Cost(max(sent), once_s, push, pull, self._apply_s(scheme, load))

    def wire_bytes(self, load: Load) -> int:
        """Of one dense element."""
        return load.elem_bytes if self.wire == "fp32" else min(load.elem_bytes, 2)

    # -- the schemes' legs ------------------------------------------------------------------------------------------
    def _local(self, load: Load) -> list[Phase]:
        return []

    def _ring(self, load: Load) -> list[Phase]:
        if self.wire_bytes(load) < load.elem_bytes:  # owners sum, and hand out what is narrow again
            push, pull = self._server(load)
            return [push, replace(pull, is_pull=False)]
        num_nodes = self.cluster.num_nodes
        each = (2 * self.wire_bytes(load) * load.num_elems * (num_nodes - 1) / num_nodes,) * num_nodes
        steps = 2 * (num_nodes - 1)
        return [Phase(each, each, steps, 1.0, self._dense_memory(load), is_own=False, hides_steps=True)]

    def _doubling(self, load: Load) -> list[Phase]:
        if self._most_workers > 1:
            return self._ring(load)
        num_workers = self.cluster.num_workers
        num_doublings = num_workers.bit_length() - 1
        is_uneven = num_workers > 1 << num_doublings
        each = (float(load.elem_bytes * load.num_elems * (num_doublings + is_uneven)),) * num_workers
        num_rounds = num_doublings + 2 * is_uneven
        return [Phase(each, each, WAKES_PER_ROUND * num_rounds, 1.0)]

    def _server(self, load: Load) -> list[Phase]:
        others = self.cluster.num_nodes - 1
        dense = self.wire_bytes(load) * load.num_elems
        if self._puts:
            return self._flows(dense, 1, 0.0, load)
        push = Phase(
            sent=tuple(dense * (1 - share) for share in self._shares),
            received=tuple(dense * share * others for share in self._shares),
            num_steps=others,
            share=self.cluster.push_share,
            local_bytes=self._dense_memory(load),
        )
        return [push, self._pull(dense)]

    def _tree(self, load: Load) -> list[Phase]:
        """On each level a worker hears, or tells, k others one after another: the link is not filled meanwhile."""
        dense = self.wire_bytes(load) * load.num_elems
        arity = tree_arity(self.cluster.num_workers)
        levels = tree_levels(self.cluster.num_workers, arity)
        return self._flows(dense, levels, levels * arity * dense, load)

    def _flows(self, dense: float, levels: int, waited_bytes: float, load: Load) -> list[Phase]:
        """Notified puts: up to the roots, which go round, and down again; worker to worker, also inside a node."""
        if self.cluster.num_nodes == 1:
            levels, waited_bytes = 0, 0.0
        each = tuple(
            dense * workers * (1 - share)
            for workers, share in zip(self.cluster.node_workers, self._shares, strict=True)
        )
        up = Phase(each, each, levels, 1.0, self._dense_memory(load), waited_bytes, is_own=False)
        return [up, replace(up, local_bytes=0.0, is_pull=True)]

    def _factors(self, load: Load) -> list[Phase]:
        each = self._factor_bytes(load)
        blocks = [workers * each for workers in self.cluster.node_workers]
        return [self._gather(blocks, local_bytes=self._once_if_shared(each))]

    def _factor_server(self, load: Load) -> list[Phase]:
        larger, smaller = load.num_slices, load.slice_elems
        row_bytes = load.num_rows * load.elem_bytes
        whole = self._gather([workers * row_bytes * smaller for workers in self.cluster.node_workers], is_once=True)
        slices = tuple(
            workers * row_bytes * larger * (1 - share)
            for workers, share in zip(self.cluster.node_workers, self._shares, strict=True)
        )
        copied = self._once_if_shared(self._factor_bytes(load))
        push = Phase(slices, slices, whole.num_steps, self.cluster.push_share, copied)
        num_elems = larger * smaller
        read = self._once_if_shared(load.elem_bytes * num_elems)
        return [whole, push, self._pull(self.wire_bytes(load) * num_elems, local_bytes=read)]

    def _rows(self, load: Load) -> list[Phase]:
        assert load.rows is not None
        row_bytes = load.elem_bytes * load.rows.width + ROW_NUMBER_BYTES
        blocks = [
            min(workers * load.rows.touched, load.rows.total) * row_bytes for workers in self.cluster.node_workers
        ]
        local = 2 * self._once_if_shared(load.rows.touched * row_bytes)
        return [self._gather(blocks, local_bytes=local)]

    def _power_sgd(self, load: Load) -> list[Phase]:
        assert load.power is not None
        sides = (load.power.outputs, load.power.inputs)
        each = [load.elem_bytes * load.power.rows * side for side in sides]
        return [
            self._gather([workers * size for workers in self.cluster.node_workers], self._once_if_shared(size))
            for size in each
        ]

    # -- what they are made of --------------------------------------------------------------------------------------
    def _gather(
        self, blocks: Sequence[float], local_bytes: float = 0.0, *, is_pull: bool = False, is_once: bool = False
    ) -> Phase:
        total = math.fsum(blocks)
        successors = [*blocks[1:], blocks[0]]
        return Phase(
            sent=tuple(total - block for block in successors),
            received=tuple(total - block for block in blocks),
            num_steps=len(blocks) - 1,
            share=self.cluster.gather_share,
            local_bytes=local_bytes,
            is_pull=is_pull,
            is_once=is_once,
        )

    def _pull(self, dense_bytes: float, local_bytes: float = 0.0) -> Phase:
        return self._gather([dense_bytes * share for share in self._shares], local_bytes, is_pull=True)

    def _factor_bytes(self, load: Load) -> float:
        return load.elem_bytes * load.num_rows * load.row_elems

    def _dense_memory(self, load: Load) -> float:
        busiest = self._most_workers
        return (2 * busiest + 1) * load.num_elems * load.elem_bytes if busiest > 1 else 0.0

    def _once_if_shared(self, worker_bytes: float) -> float:
        """Bytes through a node's memory if each of its workers moves this many to share them."""
        return self._most_workers * worker_bytes if self._most_workers > 1 else 0.0

    # -- seconds ----------------------------------------------------------------------------------------------------
    def _leg(self, phase: Phase) -> Leg:
        cluster = self.cluster
        latency_s, overhead_s = cluster.message(is_own=phase.is_own)
        steps_s = phase.num_steps * latency_s
        return Leg(
            wire_s=8 * max(*phase.sent, *phase.received) / (cluster.bandwidth_bps * phase.share),
            local_s=8 * phase.local_bytes / cluster.local_bps,
            latency_s=steps_s + 8 * phase.waited_bytes / cluster.bandwidth_bps,
            overhead_s=phase.num_steps * overhead_s,
            hidden_s=HIDDEN_STEPS * steps_s if phase.hides_steps else 0.0,
        )

    def _apply_s(self, scheme: Scheme, load: Load) -> float:
        cluster = self.cluster
        if scheme is Scheme.LOCAL:
            return 0.0
        owned = cluster.num_workers if scheme.has_owners else 1
        update_s = 8 * load.elem_bytes * load.num_elems / owned / cluster.update_bps
        if load.power is not None and scheme is Scheme.POWER_SGD:
            return update_s + 6 * load.power.rows * load.power.outputs * load.power.inputs / cluster.flops
        if scheme is not Scheme.FACTORS:
            return update_s
        products = sum(shape.rows * shape.outputs * shape.inputs for shape in load.factors)
        return update_s + 2 * (cluster.num_workers - 1) * products / cluster.flops


_PHASES: dict[Scheme, Callable[[CostModel, Load], list[Phase]]] = {
    Scheme.LOCAL: CostModel._local,
    Scheme.RING: CostModel._ring,
    Scheme.DOUBLING: CostModel._doubling,
    Scheme.SERVER: CostModel._server,
    Scheme.FACTORS: CostModel._factors,
    Scheme.FACTOR_SERVER: CostModel._factor_server,
    Scheme.ROWS: CostModel._rows,
    Scheme.POWER_SGD: CostModel._power_sgd,
    Scheme.TREE: CostModel._tree,
}
assert set(_PHASES) == set(Scheme), "every scheme has a cost"
