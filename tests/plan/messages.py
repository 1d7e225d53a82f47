"""Each scheme as explicit messages between nodes, counted one by one.

What is sent are sets of tags: "worker w's contribution to element i is in here". A protocol is right if in the end
every node holds every worker's contribution to everything; then its count is an oracle for the formulas.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate


@dataclass
class Legs:
    """Bytes sent and received by each node, per leg of the exchange."""

    num_nodes: int
    sent: dict[str, list[float]] = field(default_factory=dict)
    received: dict[str, list[float]] = field(default_factory=dict)

    def send(self, leg: str, source: int, to: int, num_bytes: float) -> None:
        assert source != to, "what stays on a node costs nothing"
        self.sent.setdefault(leg, [0.0] * self.num_nodes)[source] += num_bytes
        self.received.setdefault(leg, [0.0] * self.num_nodes)[to] += num_bytes

    @property
    def most_sent(self) -> float:
        return max(sum(leg[node] for leg in self.sent.values()) for node in range(self.num_nodes)) if self.sent else 0.0

    @property
    def busiest(self) -> float:
        """The bytes that take the time: of each leg, the node that sends or receives most."""
        return sum(max(*self.sent[leg], *self.received[leg]) for leg in self.sent)


class Machines:
    """Workers 0 … P−1 dealt out to nodes in order."""

    def __init__(self, node_workers: tuple[int, ...]) -> None:
        ends = list(accumulate(node_workers))
        self.workers = [range(end - count, end) for end, count in zip(ends, node_workers, strict=True)]
        self.num_nodes, self.num_workers = len(node_workers), ends[-1]
        self.node_of = {worker: node for node, group in enumerate(self.workers) for worker in group}
        self.legs = Legs(self.num_nodes)

    def hand_round(self, leg: str, blocks: list[float]) -> None:
        """A ring of neighbours: in every step each node passes on the block it got last."""
        holds = [{node} for node in range(self.num_nodes)]
        passing = list(range(self.num_nodes))
        for _ in range(self.num_nodes - 1):
            moved = list(passing)
            for node in range(self.num_nodes):
                to = (node + 1) % self.num_nodes
                self.legs.send(leg, node, to, blocks[passing[node]])
                moved[to] = passing[node]
            passing = moved
            for node in range(self.num_nodes):
                holds[node].add(passing[node])
        assert all(held == set(range(self.num_nodes)) for held in holds)


def ring(node_workers: tuple[int, ...], num_elems: int, wire_bytes: int) -> Legs:
    """Reduce-scatter and all-gather around the ring; as many elements as nodes divide."""
    machines = Machines(node_workers)
    num_nodes = machines.num_nodes
    segments = [range(num_elems * s // num_nodes, num_elems * (s + 1) // num_nodes) for s in range(num_nodes)]
    holds = [[set(group) for _ in range(num_elems)] for group in machines.workers]
    for step in range(2 * (num_nodes - 1)):
        sums = step < num_nodes - 1
        sending = [(node, segments[(node - step) % num_nodes]) for node in range(num_nodes)]
        payloads = [[set(holds[node][i]) for i in segment] for node, segment in sending]
        for (node, segment), payload in zip(sending, payloads, strict=True):
            to = (node + 1) % num_nodes
            machines.legs.send("all-reduce", node, to, len(segment) * wire_bytes)
            for i, workers in zip(segment, payload, strict=True):
                holds[to][i] = holds[to][i] | workers if sums else workers
    everyone = set(range(machines.num_workers))
    assert all(workers == everyone for held in holds for workers in held)
    return machines.legs


def server(node_workers: tuple[int, ...], num_elems: int, wire_bytes: int) -> Legs:
    """Every node's sum of a shard goes straight to the shard's owner; shards then go round."""
    machines = Machines(node_workers)
    shard = num_elems // machines.num_workers
    at_owner: dict[int, set[int]] = defaultdict(set)
    for owner in range(machines.num_workers):
        for node, group in enumerate(machines.workers):
            at_owner[owner] |= set(group)
            if node != machines.node_of[owner]:
                machines.legs.send("push", node, machines.node_of[owner], shard * wire_bytes)
    assert all(workers == set(range(machines.num_workers)) for workers in at_owner.values())
    machines.hand_round("pull", [len(group) * shard * wire_bytes for group in machines.workers])
    return machines.legs


def factors(node_workers: tuple[int, ...], rows: int, sides: tuple[int, int], elem_bytes: int) -> Legs:
    machines = Machines(node_workers)
    machines.hand_round("gather", [len(group) * rows * sum(sides) * elem_bytes for group in machines.workers])
    return machines.legs


def factor_server(
    node_workers: tuple[int, ...], rows: int, sides: tuple[int, int], elem_bytes: int, wire_bytes: int
) -> Legs:
    """The smaller side goes round; every worker's slice of the larger side goes to the slice's owner."""
    machines = Machines(node_workers)
    larger, smaller = max(sides), min(sides)
    machines.hand_round("whole", [len(group) * rows * smaller * elem_bytes for group in machines.workers])
    width = larger // machines.num_workers
    for owner in range(machines.num_workers):
        for worker in range(machines.num_workers):
            if machines.node_of[worker] != machines.node_of[owner]:
                source, to = machines.node_of[worker], machines.node_of[owner]
                machines.legs.send("slices", source, to, rows * width * elem_bytes)
    machines.hand_round("pull", [len(group) * width * smaller * wire_bytes for group in machines.workers])
    return machines.legs


def rows(node_workers: tuple[int, ...], touched: int, width: int, total: int, elem_bytes: int) -> Legs:
    """Worker w touches `touched` rows from row w · touched on, round the table; a node sends each row once."""
    machines = Machines(node_workers)
    blocks = []
    for group in machines.workers:
        distinct = {(worker * touched + i) % total for worker in group for i in range(touched)}
        blocks.append(float(sum(width * elem_bytes + 4 for _ in distinct)))
    machines.hand_round("gather", blocks)
    return machines.legs
