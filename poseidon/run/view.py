"""View: what rank 0 can look at while a job runs, without anybody being asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from poseidon.plan import CommPlan, Scheme
from poseidon.transport.vitals import Vitals


@dataclass(frozen=True, slots=True)
class JobView:
    """
    plan            what is exchanged, and how
    vitals          where workers stand, by rank, as last heard of them: about a second old
    sent_bytes      payload that has left this node so far
    bandwidth       of the node's link, in bytes per second; None: all workers are on one node, nothing crosses a wire
    """

    plan: CommPlan
    vitals: Callable[[], Mapping[int, Vitals]]
    sent_bytes: Callable[[], int]
    bandwidth: float | None

    def scheme_shares(self) -> dict[Scheme, float]:
        """Which part of the parameters travels by which scheme, the largest first."""
        counts: dict[Scheme, int] = {}
        for unit in self.plan.units:
            counts[unit.scheme] = counts.get(unit.scheme, 0) + unit.num_elems
        total = sum(counts.values()) or 1
        return {scheme: count / total for scheme, count in sorted(counts.items(), key=lambda entry: -entry[1])}
