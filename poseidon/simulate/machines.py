"""Machines: a cluster as it is played, beyond what a plan is made for.

nodes       workers per node, bandwidth and costs of messages: the plan's own `Cluster`
switch      nodes hang on switches of `nodes_per_switch`; what leaves a switch shares an uplink (and what comes, a
            downlink) of nodes_per_switch · β / oversubscription. 0: one switch that carries everything
handling    payload that a node's processor can handle, in bits per second, beside its o per message: what it sends,
            what it gets, and rows of factors put together. Hosts with cores to spare never notice; eight hosts on
            two cores do
jitter      relative standard deviation of a worker's compute from iteration to iteration, drawn from `seed`
stragglers  workers that compute so many times as long as the others
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from poseidon.errors import UsageError
from poseidon.plan import Cluster


@dataclass(frozen=True, slots=True)
class Straggler:
    """A worker whose layers take `factor` times as long."""

    rank: int
    factor: float


@dataclass(frozen=True, slots=True)
class Machines:
    """See the module's docstring."""

    cluster: Cluster
    nodes_per_switch: int = 0
    oversubscription: float = 1.0
    handling_bps: float = math.inf
    jitter: float = 0.0
    stragglers: tuple[Straggler, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.nodes_per_switch < 0:
            raise UsageError(f"a switch has a number of nodes, 0 for one switch for all, got {self.nodes_per_switch}")
        if not (math.isfinite(self.oversubscription) and self.oversubscription >= 1):
            raise UsageError(f"a switch is oversubscribed 1 to 1 or more, got {self.oversubscription}")
        if not self.handling_bps > 0:
            raise UsageError(f"a processor handles more than 0 bits per second, got {self.handling_bps}")
        if not (math.isfinite(self.jitter) and 0 <= self.jitter < 1):
            raise UsageError(f"jitter is a share of compute from 0 up to 1, like 0.05, got {self.jitter}")
        if self.seed < 0:
            raise UsageError(f"a seed is 0 or more, got {self.seed}")
        ranks = [straggler.rank for straggler in self.stragglers]
        for straggler in self.stragglers:
            if not 0 <= straggler.rank < self.cluster.num_workers:
                raise UsageError(
                    f"there is no worker {straggler.rank} to be a straggler: the cluster has workers 0 to "
                    f"{self.cluster.num_workers - 1}"
                )
            if not (math.isfinite(straggler.factor) and straggler.factor > 0):
                raise UsageError(f"a straggler takes so many times as long, above 0, got {straggler.factor}")
            if ranks.count(straggler.rank) > 1:
                raise UsageError(f"worker {straggler.rank} is named as a straggler twice: name it once")

    @property
    def are_alike(self) -> bool:
        """Whether all workers do the same at the same time, so that one can stand for all."""
        cluster = self.cluster
        has_shared_uplinks = bool(self.nodes_per_switch) and self.oversubscription > 1
        same = len(set(cluster.node_workers)) == 1
        if max(cluster.node_workers) > 1 and math.isfinite(self.handling_bps):
            return False  # workers of a node take turns at its processor
        return same and not (has_shared_uplinks or self.jitter or any(s.factor != 1 for s in self.stragglers))

    @property
    def nodes_of_workers(self) -> tuple[int, ...]:
        """By worker, its node: workers are numbered node by node."""
        return tuple(node for node, number in enumerate(self.cluster.node_workers) for _ in range(number))

    def switch_of(self, node: int) -> int:
        return node // self.nodes_per_switch if self.nodes_per_switch else 0

    @property
    def num_switches(self) -> int:
        return self.switch_of(self.cluster.num_nodes - 1) + 1

    @property
    def uplink_bps(self) -> float:
        """What leaves a switch, and what comes to it."""
        return self.cluster.bandwidth_bps * max(self.nodes_per_switch, 1) / self.oversubscription

    def describe(self) -> str:
        """One line for people."""
        words = [self.cluster.describe()]
        if self.nodes_per_switch:
            words.append(f"switches of {self.nodes_per_switch} nodes, {self.oversubscription:g}:1")
        if self.jitter:
            words.append(f"jitter {self.jitter:g}")
        words += [f"worker {s.rank} takes {s.factor:g} times as long" for s in self.stragglers]
        return ", ".join(words)
