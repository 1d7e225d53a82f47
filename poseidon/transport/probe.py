"""Probe: latency and bandwidth of the links, measured at the start of a job, as the plan needs them.

    α  latency_s       one step of an all-reduce of next to nothing: a message's cost besides its bytes
    β  bandwidth_bps   payload bits per second of one NIC, in each direction, while all NICs send and receive
    o  overhead_s      what is left of α when several all-reduces are on their way: the hosts' own work
    own_latency_s, own_overhead_s      the same of our own collectives, where Python has a hand in every message
    gather_share, push_share           the part of β that a gather gets, and a reduction to shards

β: one worker of each host sends to the next host and receives from the previous one, all at the same time. On a single
host all workers do. The amount is at least 16 MB where the link allows; a first, small try decides, so that the probe
takes about two seconds. What else hosts and switches do just then can only make a link look slower: it is tried as long
as it shows itself faster. All workers get the same figures, to the bit: those of the slowest NIC, which is the pace
of a ring. α and o are taken at this number of workers: on hosts short of processors they grow with it.

Memory that workers of a node share: the bits per second at which it is passed through when they sum a tensor of n bytes
in it, (2 g + 1) · n for g workers as the plan counts; of the slowest node.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from poseidon.transport.base import OWN_TAGS, Transport, Work
from poseidon.transport.collectives import all_gather, reduce_shards, shards_of

PROBE_TAG = OWN_TAGS + 2
SIDE_TAGS = OWN_TAGS + 16
FIRST_BYTES = 1 << 20
LEAST_BYTES = 16 << 20
MOST_BYTES = 64 << 20
PIECE_BYTES = 1 << 20
OPEN_PIECES = 8
NUM_PASSES = 4  # at least
NUM_VAIN = 3  # passes in a row that are no better: the best is known
MOST_PASSES = 16
BETTER = 0.98  # of the time that was the best so far
OPEN_SUMS = 4
NUM_SUM_PASSES = 5
SHARE_S = 0.1
LEAST_SHARE = 0.2
MEMORY_BYTES = 8 << 20
NUM_MEMORY_PASSES = 4
TARGET_S = 0.2
LIMIT_S = 0.4


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """What a link can do. A job of one worker has no links: no latency, infinite bandwidth."""

    num_workers: int
    num_hosts: int
    latency_s: float
    bandwidth_bps: float
    probed_bytes: int
    overhead_s: float = 0.0
    own_latency_s: float | None = None
    own_overhead_s: float | None = None
    gather_share: float = 1.0
    push_share: float = 1.0

    def figures(self) -> dict[str, Any]:
        """What a planner's Cluster is told of links, by its own names."""
        counted = ("num_workers", "num_hosts", "probed_bytes")
        return {name: value for name, value in asdict(self).items() if name not in counted}

    def __str__(self) -> str:
        speed = "" if math.isinf(self.bandwidth_bps) else f", {self.bandwidth_bps / 1e6:.0f} Mbit/s per NIC each way"
        return f"{self.num_workers} workers on {self.num_hosts} hosts, {self.latency_s * 1e6:.0f} µs per message{speed}"


def probe(transport: Transport, hosts: Sequence[int] | None = None) -> LinkFacts:
    """Measures; all workers call it together. `hosts` says on which host each rank runs (None: as the peers say)."""
    names = [peer.host for peer in transport.peers]
    where = [names.index(name) for name in names] if hosts is None else list(hosts)
    num_hosts = len(set(where))
    if transport.size == 1:
        return LinkFacts(1, 1, 0.0, math.inf, 0)
    num_steps = 2 * ((num_hosts if num_hosts > 1 else transport.size) - 1)
    sums, pushed, pulled = (_fixed_s(transport, start) for start in _tiny(transport))
    leaders = [where.index(host) for host in dict.fromkeys(where)]
    ring = leaders if num_hosts > 1 else list(range(transport.size))
    num_bytes = _amount(FIRST_BYTES / max(_shared(transport, _pass_s(transport, ring, FIRST_BYTES))))
    bandwidth_bps = num_bytes * 8 / _best_s(transport, lambda: _pass_s(transport, ring, num_bytes))
    gather_share, push_share = _shares(transport, num_hosts, bandwidth_bps)
    return LinkFacts(
        num_workers=transport.size,
        num_hosts=num_hosts,
        latency_s=sums[0] / num_steps,
        bandwidth_bps=bandwidth_bps,
        probed_bytes=num_bytes,
        overhead_s=sums[1] / num_steps,
        own_latency_s=(pushed[0] + pulled[0]) / num_steps,
        own_overhead_s=(pushed[1] + pulled[1]) / num_steps,
        gather_share=gather_share,
        push_share=push_share,
    )


def probe_memory(transport: Transport) -> float | None:
    """Of nodes whose workers share it, in bits per second; None if there are none. All workers call it together."""
    levels = transport.levels
    if levels is None:
        return None
    num_here = max(levels.node_workers)
    tensor = torch.zeros(MEMORY_BYTES // 4)
    seconds = []
    for _ in range(NUM_MEMORY_PASSES):
        _shared(transport, 0.0)  # all start together
        started_s = time.perf_counter()
        work = transport.engine.submit(PROBE_TAG, lambda: levels.sum_on_node(tensor, PROBE_TAG), "measuring memory")
        work.wait()
        seconds.append(max(_shared(transport, time.perf_counter() - started_s)))
    return (2 * num_here + 1) * MEMORY_BYTES * 8 / min(seconds)


Start = Callable[[int], Work]
"""Starts the collective of a number, counted from 0; those of different numbers run side by side."""


def _tiny(transport: Transport) -> tuple[Start, Start, Start]:
    """An all-reduce of next to nothing, a reduction to shards, a gather."""
    tensors = [torch.zeros(transport.size) for _ in range(OPEN_SUMS)]
    shards = [shards_of(tensor, transport.size) for tensor in tensors]
    return (
        lambda number: transport.all_reduce(tensors[number]),
        lambda number: reduce_shards(transport, shards[number], tag=SIDE_TAGS + number),
        lambda number: all_gather(transport, shards[number], tag=SIDE_TAGS + number),
    )


def _fixed_s(transport: Transport, start: Start) -> tuple[float, float]:
    """The time of a collective of next to nothing: alone, and each of OPEN_SUMS that are on their way at once."""
    alone_s, each_s = (_each_s(transport, start, number) for number in (1, OPEN_SUMS))
    return alone_s, min(alone_s, each_s)


def _each_s(transport: Transport, start: Start, number: int) -> float:
    seconds = []
    for _ in range(NUM_SUM_PASSES):
        _shared(transport, 0.0)  # all start together
        started_s = time.perf_counter()
        for work in [start(place) for place in range(number)]:
            work.wait()
        seconds.append(max(_shared(transport, time.perf_counter() - started_s)) / number)
    return statistics.median(seconds)


def _shares(transport: Transport, num_hosts: int, bandwidth_bps: float) -> tuple[float, float]:
    """How close to β a gather and a reduction to shards come, of as many bytes through a NIC as take SHARE_S."""
    if num_hosts == 1:
        return 1.0, 1.0
    each = int(min(MOST_BYTES, max(FIRST_BYTES, bandwidth_bps / 8 * SHARE_S)) / (num_hosts - 1)) // 4
    blocks = [torch.zeros(each) for _ in range(transport.size)]
    num_bytes = each * 4 * (transport.size - transport.size // num_hosts)
    limit_s = num_bytes * 8 / bandwidth_bps
    shares = []
    for collective in (all_gather, reduce_shards):
        seconds = _best_s(transport, partial(_collective_s, transport, blocks, collective))
        shares.append(min(1.0, max(LEAST_SHARE, limit_s / seconds)))
    return shares[0], shares[1]


def _collective_s(transport: Transport, blocks: list[Tensor], collective: Callable[..., Work]) -> float:
    """The slowest worker's: a collective is over when all have ended the same one."""
    _shared(transport, 0.0)  # all start together
    started_s = time.perf_counter()
    collective(transport, blocks, tag=PROBE_TAG).wait()
    return max(_shared(transport, time.perf_counter() - started_s))


def _best_s(transport: Transport, try_s: Callable[[], float]) -> float:
    """Of the slowest worker's tries, the best. All go on together until none of them gets better any more."""
    own_s = slowest_s = math.inf
    num_tries = num_vain = 0
    while num_tries < NUM_PASSES or (num_vain < NUM_VAIN and num_tries < MOST_PASSES):
        own_s = min(own_s, try_s())
        before_s, slowest_s = slowest_s, max(_shared(transport, own_s))
        num_tries += 1
        num_vain = 0 if slowest_s < before_s * BETTER else num_vain + 1
    return slowest_s


def _amount(bytes_per_s: float) -> int:
    """How much to send at about this speed."""
    wanted = max(LEAST_BYTES, min(MOST_BYTES, bytes_per_s * TARGET_S))
    return max(FIRST_BYTES, int(min(wanted, bytes_per_s * LIMIT_S)) // PIECE_BYTES * PIECE_BYTES)


def _pass_s(transport: Transport, ring: list[int], num_bytes: int) -> float:
    """The time in which this worker passes `num_bytes` on and receives as much; 0 if it is not in the ring."""
    _shared(transport, 0.0)  # all start together
    if transport.rank not in ring:
        return 0.0
    place = ring.index(transport.rank)
    left, right = ring[place - 1], ring[(place + 1) % len(ring)]
    outgoing = torch.zeros(PIECE_BYTES, dtype=torch.uint8)
    incoming = [torch.empty(PIECE_BYTES, dtype=torch.uint8) for _ in range(OPEN_PIECES)]

    def run() -> None:
        works: deque[Work] = deque()
        for number in range(num_bytes // PIECE_BYTES):
            if number >= OPEN_PIECES:
                works.popleft().wait()
                works.popleft().wait()
            works.append(transport.recv(incoming[number % OPEN_PIECES], left, PROBE_TAG))
            works.append(transport.send(outgoing, right, PROBE_TAG))
        for work in works:
            work.wait()

    started_s = time.perf_counter()
    transport.engine.submit(PROBE_TAG, run, "measuring bandwidth").wait()
    return time.perf_counter() - started_s


def _shared(transport: Transport, value: float) -> list[float]:
    """Everybody's value, by rank."""
    cells = [torch.zeros(1, dtype=torch.float64) for _ in range(transport.size)]
    cells[transport.rank].fill_(value)
    all_gather(transport, cells, tag=PROBE_TAG).wait()
    return [cell.item() for cell in cells]
