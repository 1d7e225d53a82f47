"""A limit on bandwidth against the wire: what each host's link counts per second, over what --bandwidth-limit allows.

    sudo python -m bench.limit [--limit 200mbit] [--hosts 4] [--rate 1gbit] [--seconds 6] [--json OUT]

Emulated hosts (`bench/netlab.py`), real TCP, real training of a net that has much more to send than the limit lets
through; every scheme by force, and notified puts. The link's own counters (tx_bytes and rx_bytes of eth0) are read
while training runs. Sent and received of each worker, headers, acknowledgements and signs of life included, must lie
within 5 % of the limit: not above, and, as there is always something to send, not below.

Small messages beside: how long a round table of 4 bytes takes meanwhile, in the median.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from bench.bytes import solver_of
from bench.netlab import Lab, Links
from poseidon.plan import Cluster, PlanRequest, Scheme, make_plan, parse_bandwidth
from poseidon.run.distribute import distribute
from poseidon.run.layer_times import estimated_times
from poseidon.run.profile import profile_net
from poseidon.run.roundtable import Roundtable
from poseidon.transport.c10d import C10dOptions, Master, connect
from poseidon.transport.interface import choose_interface
from poseidon.transport.paced import PacedTransport
from poseidon.transport.pacing import Pace

ROOT = Path(__file__).resolve().parent.parent
COUNTERS = [Path(f"/sys/class/net/eth0/statistics/{name}_bytes") for name in ("tx", "rx")]
LEAST, MOST = 0.95, 1.05
CASES = {
    "ring": PlanRequest(scheme=Scheme.RING),
    "doubling": PlanRequest(scheme=Scheme.DOUBLING),
    "server": PlanRequest(scheme=Scheme.SERVER),
    "factors": PlanRequest(scheme=Scheme.FACTORS),
    "factor-server": PlanRequest(scheme=Scheme.FACTOR_SERVER),
    "gpi server": PlanRequest(scheme=Scheme.SERVER, pattern="gpi"),
    "gpi tree": PlanRequest(scheme=Scheme.TREE, pattern="gpi"),
}


@dataclass(frozen=True, slots=True)
class Result:
    """Over the limit, the least and the most of all workers; seconds for a small message to everybody."""

    case: str
    sent: tuple[float, float]
    received: tuple[float, float]
    meeting_s: float

    @property
    def holds(self) -> bool:
        """Trees have a root that sends more than others; nobody may exceed, and the busiest uses what it may."""
        return max(self.sent[1], self.received[1]) <= MOST and max(self.sent[1], self.received[1]) >= LEAST


def counts() -> list[int]:
    return [int(path.read_text()) for path in COUNTERS]


def measure(options: argparse.Namespace) -> list[Result]:
    """On every worker of the job; the results are the same everywhere."""
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    master = Master(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    inner = connect(rank, size, master, C10dOptions(choose_interface(master.address, is_multi_host=True).address))
    limit_bps = parse_bandwidth(options.limit)
    wire = PacedTransport(inner, Pace(limit_bps))
    table = Roundtable(wire)
    results = []
    for name in options.cases.split(","):
        solver = solver_of(Scheme.RING)
        profile = profile_net(solver.net, estimated_times(solver.net, 1e9))
        plan = make_plan(profile, Cluster((1,) * size, bandwidth_bps=limit_bps), CASES[name])
        with distribute(solver, wire, plan):
            results.append(_watched(name, solver, table, options.seconds, limit_bps / 8))
    table.meet()
    wire.close()
    return results


def _watched(name: str, solver, table: Roundtable, seconds: float, limit: float) -> Result:
    solver.step(2)
    table.meet()
    before, begun_s, meetings = counts(), time.monotonic(), []
    is_over = False
    while not is_over:
        solver.step(1)
        met_s = time.monotonic()
        is_over = bool(table.sum(torch.tensor(float(met_s - begun_s > seconds))))  # all stop together
        meetings.append(time.monotonic() - met_s)
    rates = [
        (after - first) / (time.monotonic() - begun_s) / limit for after, first in zip(counts(), before, strict=True)
    ]
    by_rank = table.gather(torch.tensor(rates, dtype=torch.float64))
    solver.updates.drain()
    least, most = by_rank.min(0).values.tolist(), by_rank.max(0).values.tolist()
    return Result(name, (least[0], most[0]), (least[1], most[1]), statistics.median(meetings))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", default="200mbit")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        results = measure(options)
        if os.environ["RANK"] == "0":
            options.worker.write_text(json.dumps([asdict(result) for result in results]))
        return 0
    with tempfile.TemporaryDirectory() as folder, Lab("limit", options.hosts, Links((options.rate,))) as lab:
        out = Path(folder) / "results.json"
        command = [sys.executable, "-m", "bench.limit", "--worker", str(out), "--limit", options.limit]
        command += ["--seconds", str(options.seconds), "--cases", options.cases]
        os.chdir(ROOT)
        if lab.run(command, show_all=True):
            raise SystemExit("a worker failed")
        results = [
            Result(**{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()})
            for row in json.loads(out.read_text())
        ]
    print(f"limit {options.limit}, {options.hosts} hosts at {options.rate}: used of it, least and most of all workers")
    for result in results:
        sent, received = (f"{least:.3f} … {most:.3f}" for least, most in (result.sent, result.received))
        verdict = "" if result.holds else f"   outside {LEAST} … {MOST}"
        print(f"{result.case:14} sent {sent}   received {received}   meeting {result.meeting_s * 1e3:6.1f} ms{verdict}")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 0 if all(result.holds for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
