"""Runs collectives by themselves, on either network."""

from __future__ import annotations

import math
from collections.abc import Sequence

from poseidon.plan import Cluster
from poseidon.simulate.agenda import Agenda
from poseidon.simulate.flock import Flock
from poseidon.simulate.machines import Machines
from poseidon.simulate.network import Network
from poseidon.simulate.waves import Collective

BYTE_S = 1e-6  # 1 MB/s: a byte takes a microsecond


def machines(size: int, latency_s: float = 0.0, overhead_s: float = 0.0, **options) -> Machines:
    cluster = Cluster((1,) * size, 8 / BYTE_S, latency_s, overhead_s=overhead_s)
    return Machines(cluster, **options)


def run(
    described: Machines,
    collectives: Sequence[Collective],
    starts: Sequence[float] | None = None,
    *,
    lanes: int | None = None,
    waves: bool = False,
) -> list[list[float]]:
    """By collective and node, when it was over; every node starts all of them at its time."""
    agenda = Agenda()
    size = lanes or described.cluster.num_nodes
    network = Flock(described, agenda) if waves else Network(described, agenda, size)
    over = [[math.nan] * size for _ in collectives]

    def note(index: int, node: int) -> None:
        assert math.isnan(over[index][node]), "a collective is over once"
        over[index][node] = agenda.now_s

    runs = [
        network.begin(collective, lambda node, index=index: note(index, node))
        for index, collective in enumerate(collectives)
    ]

    def start(node: int) -> None:
        for begun in runs:
            network.join(begun, node)

    for node in range(size):
        agenda.at(starts[node] if starts else 0.0, start, node)
    agenda.run()
    assert math.isclose(sum(network.bytes_sent), sum(network.bytes_received))
    return over
