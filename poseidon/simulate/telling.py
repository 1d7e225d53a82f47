"""Telling: what happened in a simulation, as the record that a run would have left (poseidon/record).

Times begin with 0; all clocks are one. Of many workers only some leave traces: stragglers first, then the lowest ranks.
Where one worker stood for all, it is rank 0.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from poseidon.plan import CommPlan, NetProfile, Scheme
from poseidon.record import (
    SIMULATION,
    Event,
    Facts,
    Metric,
    MetricsWriter,
    Trace,
    TraceWriter,
    WorkerFigures,
    write_facts,
)
from poseidon.simulate.machines import Machines
from poseidon.simulate.play import Played
from poseidon.simulate.worker import Happening, Listener

MOST_TRACES = 32
_OF_LAYERS = ("forward", "backward")
_HAS_OWNERS = (Scheme.SERVER, Scheme.FACTOR_SERVER)


class Teller:
    """Listens to the workers whose traces are kept."""

    def __init__(self, plan: CommPlan, profile: NetProfile, machines: Machines) -> None:
        self.plan, self.machines = plan, machines
        self._profile = profile
        slow = [straggler.rank for straggler in machines.stragglers]
        ranks = dict.fromkeys([*slow, *range(machines.cluster.num_workers)])
        self._events: dict[int, list[Event]] = {rank: [] for rank in sorted(list(ranks)[:MOST_TRACES])}
        self._chunks: dict[int, list[float]] = {}  # by unit, the shares of its Sends
        for send in plan.order:
            share = (send.stop - send.start) / plan.units[send.unit].num_elems
            self._chunks.setdefault(send.unit, []).append(share)

    def listener(self, rank: int) -> Listener | None:
        """For `play`."""
        return self._hear if rank in self._events else None

    def events(self, rank: int) -> tuple[Event, ...]:
        """What a worker did, in order of time."""
        return tuple(sorted(self._events[rank], key=lambda event: event.start_s))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those that were heard of."""
        return tuple(rank for rank, events in self._events.items() if events)

    def _hear(self, rank: int, what: Happening) -> None:
        is_unit = what.kind not in (*_OF_LAYERS, "iteration")
        if is_unit:
            name = self.plan.units[what.index].params[0]
        else:
            name = self._profile.layers[what.index].name if what.kind in _OF_LAYERS else ""
        duration_s = None if what.end_s is None else what.end_s - what.start_s
        self._events[rank].append(
            Event(
                what.kind,
                name,
                what.iteration,
                what.start_s,
                duration_s,
                self._bytes(rank, what) if what.kind == "move" else None,
                what.index if is_unit else None,
                what.chunk,
            )
        )

    def _bytes(self, rank: int, what: Happening) -> int:
        """The worker's part of what its node sends for it: of a unit whose values are pulled, half with each move."""
        assert what.chunk is not None, "what moves is a chunk"
        unit = self.plan.units[what.index]
        num_moves = 2 if unit.scheme in _HAS_OWNERS else 1
        node = self.machines.nodes_of_workers[rank]
        num_moves *= self.machines.cluster.node_workers[node]
        return round(unit.bytes_sent * self._chunks[what.index][what.chunk] / num_moves)


@dataclass(frozen=True, slots=True)
class Told:
    """What a record says besides: the command, options as text, the net's prototxt, one worker's batch, versions."""

    command: tuple[str, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    net: str = ""
    batch: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


def write_record(folder: str | Path, teller: Teller, played: Played, told: Told) -> None:
    """Writes a run folder, in place of what such a folder holds already."""
    now = time.time()
    cluster = _cluster(teller.machines) | dict(told.versions)
    outcome = f"simulated {played.num_iterations} iterations"
    plan = json.loads(teller.plan.to_json()) if teller.plan.order else None
    write_facts(folder, Facts(SIMULATION, told.command, now, now, outcome, told.configuration, told.net, cluster, plan))
    for path in Path(folder).glob("trace-*.jsonl"):  # of a record that was there before
        path.unlink()
    with MetricsWriter(folder) as metrics:
        for metric in metrics_of(played, teller.machines, told.batch):
            metrics.write(metric)
    hosts = teller.machines.nodes_of_workers
    for rank in teller.ranks:
        with TraceWriter(folder, Trace(rank, f"node{hosts[rank]}", 0.0, 0.0, now, teller.events(rank))):
            pass


def metrics_of(played: Played, machines: Machines, batch: int | None) -> Iterator[Metric]:
    """A metric for every iteration; seconds are the slowest worker's."""
    num_workers = machines.cluster.num_workers
    ends_s = [0.0] * len(played.iteration_s)
    before_s = 0.0
    for iteration in range(played.num_iterations):
        ends_s = [end_s + worker[iteration] for end_s, worker in zip(ends_s, played.iteration_s, strict=True)]
        iteration_s = max(ends_s) - before_s
        before_s = max(ends_s)
        yield Metric(
            phase="train",
            iteration=iteration,
            seconds=before_s,
            samples_per_second=None if batch is None or not iteration_s else batch * num_workers / iteration_s,
            iteration_seconds=iteration_s,
            workers=tuple(_figures(played, machines, rank, iteration) for rank in range(num_workers)),
        )


def _figures(played: Played, machines: Machines, rank: int, iteration: int) -> WorkerFigures:
    place, node = (0, 0) if played.is_one_for_all else (rank, played.nodes[rank])
    wait_s = played.wait_s[place][iteration]
    number = played.num_iterations * machines.cluster.node_workers[node]
    return WorkerFigures(
        rank=rank,
        compute_s=played.iteration_s[place][iteration] - wait_s,
        wait_s=wait_s,
        sent_bytes=played.bytes_sent[node] / number,
        received_bytes=played.bytes_received[node] / number,
    )


def _cluster(machines: Machines) -> dict[str, Any]:
    cluster = machines.cluster
    nodes, first = [], 0
    for node, workers in enumerate(cluster.node_workers):
        nodes.append({"host": f"node{node}", "ranks": list(range(first, first + workers))})
        first += workers
    return {
        "workers": cluster.num_workers,
        "nodes": nodes,
        "bandwidth": cluster.bandwidth_bps / 8,
        "latency": cluster.latency_s,
        "described": machines.describe(),
    }
