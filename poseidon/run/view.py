"""View: what rank 0 can look at while a job runs, without anybody being asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from poseidon.plan import CommPlan, Scheme
from poseidon.transport.vitals import Vitals


@dataclass(frozen=True, slots=True)
class JobView:
    """
    plan            what is exchanged, and how
    vitals          where workers stand, by rank, as last heard of them: about a second old
    nodes           by rank, the node it is on
    bandwidth       of a node's link, in bytes per second; None: all workers are on one node, nothing crosses a wire
    """

    plan: CommPlan
    vitals: Callable[[], Mapping[int, Vitals]]
    nodes: Sequence[int]
    bandwidth: float | None

    def sent_bytes(self) -> float:
        """Payload of gradients and parameters that has left the node that sends most, so far."""
        by_node: dict[int, float] = {}
        for rank, found in self.vitals().items():
            by_node[self.nodes[rank]] = by_node.get(self.nodes[rank], 0.0) + found.figures.get("sent_bytes", 0.0)
        return max(by_node.values(), default=0.0)

    def scheme_shares(self) -> dict[Scheme, float]:
        """Which part of the parameters travels by which scheme, the largest first."""
        counts: dict[Scheme, int] = {}
        for unit in self.plan.units:
            counts[unit.scheme] = counts.get(unit.scheme, 0) + unit.num_elems
        total = sum(counts.values()) or 1
        return {scheme: count / total for scheme, count in sorted(counts.items(), key=lambda entry: -entry[1])}
