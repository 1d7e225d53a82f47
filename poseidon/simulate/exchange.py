"""Exchange: one Send of one iteration on its way, as all nodes and workers see it.

A node's workers first combine in its memory, one Send after another; then the node takes part in the collectives, stage
by stage; then its workers get the result through memory again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from poseidon.simulate.agenda import Agenda
from poseidon.simulate.legs import Leg, Stage
from poseidon.simulate.waves import Collective

Arrived = Callable[[int], None]
"""Told the worker at whom a leg is over."""


class AnyRun(Protocol):
    """A collective that nodes join."""


class AnyNetwork(Protocol):
    """What carries collectives."""

    def begin(self, collective: Collective, finished: Callable[[int], None]) -> AnyRun: ...

    def join(self, run: AnyRun, node: int) -> None: ...


class Nodes:
    """Which workers are where, and the memory they share."""

    def __init__(self, node_workers: tuple[int, ...], local_bps: float, agenda: Agenda) -> None:
        self.workers: list[range] = []
        self.node_of: list[int] = []
        for node, number in enumerate(node_workers):
            self.workers.append(range(len(self.node_of), len(self.node_of) + number))
            self.node_of += [node] * number
        self._second_per_byte = 8 / local_bps
        self._free_s = [0.0] * len(node_workers)
        self._agenda = agenda

    def move(self, node: int, num_bytes: float, then: Callable[[int], None]) -> None:
        """Takes bytes through a node's memory, after what is there already."""
        if not num_bytes:
            then(node)
            return
        start_s = max(self._agenda.now_s, self._free_s[node])
        self._free_s[node] = start_s + num_bytes * self._second_per_byte
        self._agenda.at(self._free_s[node], then, node)


class LegRun:
    """A leg under way. Workers `join`; each is told when it is over for it."""

    def __init__(self, leg: Leg, nodes: Nodes, network: AnyNetwork, arrived: Arrived) -> None:
        self._leg, self._nodes, self._network, self._arrived = leg, nodes, network, arrived
        num_nodes = len(nodes.workers)
        self._num_missing = [len(workers) for workers in nodes.workers]
        self._stage = [-1] * num_nodes
        self._num_running = [0] * num_nodes
        self._runs = [self._begun(stage) for stage in leg.stages]

    def _begun(self, stage: Stage) -> list[AnyRun]:
        return [self._network.begin(collective, self._finished) for collective in stage]

    def join(self, worker: int) -> None:
        node = self._nodes.node_of[worker]
        self._num_missing[node] -= 1
        if self._num_missing[node] == 0:
            self._nodes.move(node, self._leg.before_bytes, self._go_on)

    def _go_on(self, node: int) -> None:
        """The next stage, or the end."""
        self._stage[node] += 1
        if self._stage[node] == len(self._runs):
            self._nodes.move(node, self._leg.after_bytes, self._tell)
            return
        runs = self._runs[self._stage[node]]
        self._num_running[node] = len(runs)
        for run in runs:
            self._network.join(run, node)

    def _finished(self, node: int) -> None:
        self._num_running[node] -= 1
        if self._num_running[node] == 0:
            self._go_on(node)

    def _tell(self, node: int) -> None:
        for worker in self._nodes.workers[node]:
            self._arrived(worker)
