"""Our collectives beside c10d's own, on emulated hosts with shaped links, as fractions of what the wire allows.

    sudo python -m bench.collectives [--hosts 2,4,8] [--rate 1gbit] [--kib 64,1024,65536] [--repeats 7] [--json OUT]

    all-gather      each worker contributes n bytes         least bytes per link  (P−1)·n
    all-reduce      a tensor of n bytes                                           2·n·(P−1)/P
    reduce shards   a tensor of n bytes, one shard per worker                     n·(P−1)/P
    all-to-all      n bytes, one slice per worker                                 n·(P−1)/P

The limit is the least time: those bytes at the payload rate of the link, 1448 of every 1540 bytes on an Ethernet (117.5
MB/s at 1 Gbit/s). All contenders run in the same processes, taking turns; each figure is the median over the repeats of
the time from when the last worker has begun to when the last one is done (nothing can be gathered from one that a
barrier has not let go yet), printed as limit / time: 1.00 is the wire. What fits the shaper's burst (128 kB) can come
out above it. Below about 1 MB latency rules, which in this lab is scheduling: all hosts share this machine's cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from bench.netlab import PAYLOAD_FRACTION, Lab, Links, rate_bps
from poseidon.transport.c10d import C10dOptions, C10dTransport, Master, connect
from poseidon.transport.collectives import all_gather, exchange_slices, reduce_shards, shards_of
from poseidon.transport.groups import Groups, GroupSpec
from poseidon.transport.interface import choose_interface

ROOT = Path(__file__).resolve().parent.parent
SMALL_BYTES, SMALL_TIMES = 1 << 20, 5  # so much takes milliseconds, of which one late thread is half: repeated oftener


@dataclass(frozen=True, slots=True)
class Contender:
    """`share` × bytes is the least any worker must send."""

    operation: str
    name: str
    share: float
    run: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Result:
    operation: str
    name: str
    num_hosts: int
    num_bytes: int
    limit_s: float
    median_s: float
    best_s: float

    def __str__(self) -> str:
        return f"{self.limit_s / self.median_s:.2f} ({self.limit_s / self.best_s:.2f})"


def contenders(transport: C10dTransport, group: dist.Backend, num_bytes: int) -> list[Contender]:
    size, num_elems = transport.size, num_bytes // 4
    blocks = [torch.full((num_elems,), float(place)) for place in range(size)]
    whole, other = torch.ones(num_elems // size * size), torch.ones(num_elems // size * size)
    shards, slices = shards_of(whole, size), shards_of(other, size)
    rest = (size - 1) / size

    def shards_there_and_back() -> None:
        reduce_shards(transport, shards).wait()
        all_gather(transport, shards).wait()

    return [
        Contender("all-gather", "ours", size - 1, lambda: all_gather(transport, blocks).wait()),
        Contender("all-gather", "c10d", size - 1, lambda: group.allgather([blocks], [blocks[transport.rank]]).wait()),
        Contender("all-reduce", "transport (c10d)", 2 * rest, lambda: transport.all_reduce(whole).wait()),
        Contender("all-reduce", "reduce + gather shards", 2 * rest, shards_there_and_back),
        Contender("reduce shards", "ours", rest, lambda: reduce_shards(transport, shards).wait()),
        Contender(
            "reduce shards", "c10d", rest, lambda: group._reduce_scatter_base(slices[transport.rank], whole).wait()
        ),
        Contender("all-to-all", "ours", rest, lambda: exchange_slices(transport, shards, slices).wait()),
        Contender("all-to-all", "c10d", rest, lambda: group.alltoall_base(other, whole, [], []).wait()),
    ]


def slowest_s(transport: C10dTransport, run: Callable[[], None]) -> float:
    """From when the last worker has begun to when the last one has everything; all hosts have one clock here."""
    transport.barrier(60.0)
    started_s = time.perf_counter()
    run()
    times = torch.zeros(2, transport.size, dtype=torch.float64)
    times[:, transport.rank] = torch.tensor([started_s, time.perf_counter()], dtype=torch.float64)
    transport.all_reduce(times.view(-1)).wait()
    started, ended = times
    return (ended.max() - started.max()).item()


def measure(sizes: list[int], repeats: int, payload_rate: float) -> list[Result]:
    """One worker's part, inside the lab."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    master = Master(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    address = choose_interface(master.address, is_multi_host=True).address
    transport = connect(rank, size, master, C10dOptions(address))
    store = dist.TCPStore(master.address, master.port, None, False)
    group = Groups(store, address, 60.0, 600.0).get(GroupSpec("bench", rank, size))
    results = []
    for num_bytes in sizes:
        field = contenders(transport, group, num_bytes)
        number = repeats * (SMALL_TIMES if num_bytes <= SMALL_BYTES else 1)
        rounds = [[slowest_s(transport, each.run) for each in field] for _ in range(number + 1)][1:]
        for each, times_s in zip(field, zip(*rounds, strict=True), strict=True):
            limit_s = each.share * num_bytes / payload_rate
            middle_s, best_s = statistics.median(times_s), min(times_s)
            results.append(Result(each.operation, each.name, size, num_bytes, limit_s, middle_s, best_s))
    transport.barrier(60.0)
    transport.close()
    return results


def run_in_lab(num_hosts: int, options: argparse.Namespace) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder, Lab(f"co{os.getpid()}", num_hosts, Links((options.rate,))) as lab:
        out = Path(folder) / "results.json"
        command = [sys.executable, "-m", "bench.collectives", "--worker", str(out), "--rate", options.rate]
        os.environ["PYTHONPATH"] = str(ROOT)
        code = lab.run([*command, "--kib", options.kib, "--repeats", str(options.repeats)], show_all=True)
        if code != 0:
            raise SystemExit(f"bench.collectives: a worker failed with exit code {code}")
        return [Result(**found) for found in json.loads(out.read_text())]


def show(results: list[Result]) -> None:
    for num_hosts in dict.fromkeys(result.num_hosts for result in results):
        here = [result for result in results if result.num_hosts == num_hosts]
        sizes = sorted({result.num_bytes for result in here})
        print(f"\n{num_hosts} hosts: fraction of the wire limit, median (best)")
        print(f"{'':39}" + "".join(f"{num_bytes >> 10:>11} KiB" for num_bytes in sizes))
        for operation in dict.fromkeys(result.operation for result in here):
            rows = [result for result in here if result.operation == operation]
            limits = {result.num_bytes: f"{result.limit_s * 1e3:.1f}" for result in rows}
            print(f"{operation:15}{'limit, ms':24}" + "".join(f"{limits[num_bytes]:>15}" for num_bytes in sizes))
            for name in dict.fromkeys(result.name for result in rows):
                cells = {result.num_bytes: str(result) for result in rows if result.name == name}
                print(f"{'':15}{name:24}" + "".join(f"{cells[num_bytes]:>15}" for num_bytes in sizes))


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="2,4,8")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--kib", default="64,256,1024,4096,16384,65536", help="sizes to measure")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.worker:
        torch.set_num_threads(1)
        sizes = [int(text) << 10 for text in options.kib.split(",")]
        results = measure(sizes, options.repeats, rate_bps(options.rate) / 8 * PAYLOAD_FRACTION)
        if os.environ["RANK"] == "0":
            options.worker.write_text(json.dumps([asdict(result) for result in results]))
        return 0
    results = [result for text in options.hosts.split(",") for result in run_in_lab(int(text), options)]
    show(results)
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
