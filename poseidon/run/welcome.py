"""What rank 0 shows before training: who takes part, how they are connected, what they will send each other.

cluster   4 workers on 2 hosts: a (2), b (2); 8 threads each, the cores of each host divided
links     eth0 (10.0.0.5), on the way to the master a: 941 Mbit/s, 0.12 ms per message, measured
batch     4 workers × 50 = 200 samples per iteration
…                                                                                           (the plan's table)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poseidon.net import Net
from poseidon.plan import CommPlan
from poseidon.plan.cluster import rate_text
from poseidon.run.cards import Card
from poseidon.run.shards import sharded_layers

_MOST_NODES = 8


@dataclass(frozen=True, slots=True)
class Crew:
    """All workers, by rank: their cards, the nodes they are on, the threads they compute with.

    `problem`: why those of one node cannot share its memory; empty if they can.
    """

    cards: Sequence[Card]
    nodes: Sequence[int]
    threads: Sequence[int]
    problem: str = ""


def cluster_lines(crew: Crew) -> list[str]:
    """Hosts, workers per host, threads; and what is not as it should be."""
    problem = [f"memory    not shared, workers of a host use the network: {crew.problem}"] if crew.problem else []
    return [_cluster_line(crew), *problem]


def _cluster_line(crew: Crew) -> str:
    num_nodes = max(crew.nodes) + 1
    hosts = [crew.cards[crew.nodes.index(node)].host for node in range(num_nodes)]
    if num_nodes == 1:
        where = f"host {hosts[0]}"
    else:
        kind = "hosts" if len(set(hosts)) == num_nodes else "nodes"
        named = [f"{host} ({crew.nodes.count(node)})" for node, host in enumerate(hosts)]
        more = f" and {num_nodes - _MOST_NODES} more" if num_nodes > _MOST_NODES else ""
        where = f"{num_nodes} {kind}: {', '.join(named[:_MOST_NODES])}{more}"
    return f"cluster   {len(crew.cards)} workers on {where}; {_threads_text(crew)}"


def _threads_text(crew: Crew) -> str:
    least, most = min(crew.threads), max(crew.threads)
    count = f"{least}" if least == most else f"{least} to {most}"
    asked = all(card.threads is not None for card in crew.cards)
    why = "as asked for" if asked else "the cores of each host divided"
    return f"{count} thread{'s' if most > 1 else ''} each, {why}"


def links_line(card: Card, plan: CommPlan, source: str) -> str:
    """The interface, why it was chosen, and the figures the plan was made with; `source` says where these are from."""
    if plan.cluster.num_nodes == 1:
        return f"links     the memory that all workers share: {rate_text(plan.cluster.local_bps)}, {source}"
    rate, latency = rate_text(plan.cluster.bandwidth_bps), f"{plan.cluster.latency_s * 1e3:.2g} ms"
    return f"links     {card.interface}: {rate}, {latency} per message, {source}"


def batch_lines(net: Net, num_workers: int, iter_size: int) -> list[str]:
    """How many samples an iteration sees, where that is known."""
    sizes = {layer.batch_size for layer in sharded_layers(net)}
    if len(sizes) != 1:
        return []
    size = sizes.pop()
    passes = f" × {iter_size} passes" if iter_size > 1 else ""
    total = num_workers * size * iter_size
    return [f"batch     {num_workers} workers × {size}{passes} = {total} samples per iteration"]


def plan_lines(plan: CommPlan, snapshot: str) -> list[str]:
    """The plan's table; `snapshot`: the one it came with, if any. What it says of the cluster is said already."""
    told = [f"plan      the one of {snapshot}, so that sums have the same bits"] if snapshot else []
    return [*told, *plan.table().splitlines()[1:], ""]
