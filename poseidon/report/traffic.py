"""Traffic: what each unit of the plan was to send and what moved, per iteration and node.

predicted   the plan's `bytes_sent`: of the node that sends most
measured    bytes of the unit's "move" events, per recorded iteration: what has left a worker, as its transport counted.
            Workers of a node are added up (where only some have left traces, these stand for the others too); the
            greatest of all nodes is the busiest one's
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from poseidon.plan import CommPlan
from poseidon.record import Trace


@dataclass(frozen=True, slots=True)
class UnitTraffic:
    """Bytes per iteration; `measured_bytes` is None where nothing was recorded."""

    index: int
    predicted_bytes: int
    measured_bytes: float | None

    @property
    def ratio(self) -> float | None:
        if self.measured_bytes is None or not self.predicted_bytes:
            return None
        return self.measured_bytes / self.predicted_bytes


def traffic_of(
    plan: CommPlan, traces: Sequence[Trace], nodes: Sequence[Collection[int]] = ()
) -> tuple[UnitTraffic, ...]:
    """One entry per unit that travels. `nodes`: the ranks of each; who stands in none is a node of its own."""
    known = {rank for ranks in nodes for rank in ranks}
    alone = [(trace.rank,) for trace in traces if trace.rank not in known]
    measured: dict[int, float] = {}
    for ranks in (*nodes, *alone):
        found = [_per_iteration(trace) for trace in traces if trace.rank in ranks]
        for unit in {unit for one in found for unit in one}:
            total = sum(one.get(unit, 0.0) for one in found) * len(ranks) / len(found)
            measured[unit] = max(total, measured.get(unit, 0.0))
    return tuple(
        UnitTraffic(unit.index, unit.bytes_sent, measured.get(unit.index))
        for unit in plan.units
        if unit.bytes_sent or unit.index in measured
    )


def _per_iteration(trace: Trace) -> dict[int, float]:
    """Bytes of each unit in an iteration: of those iterations in which it moved."""
    totals: dict[int, float] = defaultdict(float)
    iterations: dict[int, set[int]] = defaultdict(set)
    for event in trace.events:
        if event.kind == "move" and event.num_bytes is not None and event.unit is not None:
            totals[event.unit] += event.num_bytes
            iterations[event.unit].add(event.iteration)
    return {unit: totals[unit] / len(iterations[unit]) for unit in totals}
