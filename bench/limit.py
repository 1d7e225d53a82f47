"""A limit on bandwidth against the wire: what each host's link counts per second, over what --bandwidth-limit allows.

    sudo python -m bench.limit [--limit 200mbit] [--hosts 4] [--rate 1gbit] [--seconds 6] [--json OUT]

Emulated hosts (`bench/netlab.py`), real TCP, real training of a net that has more to send than the limit lets through:
every scheme by force, notified puts, the modes of staleness, a server of its own. The link's own counters (tx_bytes and
rx_bytes of eth0) are read while training runs; headers, acknowledgements and signs of life are in them. Nobody may use
more than 1.05 of the limit, in either direction, and the busiest uses at least 0.95 of it. The busiest half second of
any host is beside: many that send to one fill its buffers before they notice that it takes its time.

Small messages beside: how long a round table of 4 bytes takes meanwhile, in the median.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from bench.bytes import solver_of
from bench.netlab import Lab, Links
from poseidon.plan import Cluster, PlanRequest, Scheme, make_plan, parse_bandwidth
from poseidon.run.distribute import DistributeOptions, distribute
from poseidon.run.layer_times import estimated_times
from poseidon.run.options import MANAGED
from poseidon.run.profile import profile_net
from poseidon.run.roundtable import Roundtable
from poseidon.run.servers import serve_tables, workers_of
from poseidon.solver import Solver
from poseidon.transport import Transport
from poseidon.transport.c10d import C10dOptions, Master, connect
from poseidon.transport.interface import choose_interface
from poseidon.transport.paced import PacedTransport
from poseidon.transport.pacing import Pace

ROOT = Path(__file__).resolve().parent.parent
COUNTERS = [Path(f"/sys/class/net/eth0/statistics/{name}_bytes") for name in ("tx", "rx")]
LEAST, MOST = 0.95, 1.05
LOOK_S, WINDOW_S = 0.02, 0.5
Moment = tuple[float, int, int]  # when, and what had been sent and received by then


@dataclass(frozen=True, slots=True)
class Case:
    request: PlanRequest
    options: DistributeOptions = field(default_factory=DistributeOptions)


def stale(consistency: str, servers: int = 0) -> Case:
    options = DistributeOptions(staleness=2, consistency=consistency, servers=servers)
    return Case(PlanRequest(scheme=Scheme.SERVER), options)


CASES = {
    "ring": Case(PlanRequest(scheme=Scheme.RING)),
    "doubling": Case(PlanRequest(scheme=Scheme.DOUBLING)),
    "server": Case(PlanRequest(scheme=Scheme.SERVER)),
    "factors": Case(PlanRequest(scheme=Scheme.FACTORS)),
    "factor-server": Case(PlanRequest(scheme=Scheme.FACTOR_SERVER)),
    "gpi server": Case(PlanRequest(scheme=Scheme.SERVER, pattern="gpi")),
    "gpi tree": Case(PlanRequest(scheme=Scheme.TREE, pattern="gpi")),
    **{name: stale(name) for name in ("ssp", "ssp-push", MANAGED)},
    "ssp-push+server": stale("ssp-push", servers=1),
}


@dataclass(frozen=True, slots=True)
class Result:
    """Over the limit: the busiest half second of all ranks; means, the least and the most of all ranks. Seconds for a
    small message to everybody."""

    case: str
    peak: float
    sent: tuple[float, float]
    received: tuple[float, float]
    meeting_s: float

    @property
    def holds(self) -> bool:
        """Trees have a root that sends more than others; nobody may exceed, and the busiest uses what it may."""
        return LEAST <= max(self.sent[1], self.received[1]) <= MOST


class Watch:
    """What the link has counted, moment by moment, on a thread of its own."""

    def __init__(self) -> None:
        self._moments: list[Moment] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            sent, received = (int(path.read_text()) for path in COUNTERS)
            self._moments.append((time.monotonic(), sent, received))

    def rates(self, begun_s: float, ended_s: float) -> list[float]:
        """Between two moments, in bytes per second: sent and received on average, and the most of either in any window
        of WINDOW_S."""
        inside = [moment for moment in self._moments if begun_s <= moment[0] <= ended_s]
        peak, first = 0.0, 0
        for last, moment in enumerate(inside):
            while first + 1 < last and moment[0] - inside[first + 1][0] >= WINDOW_S:
                first += 1
            if moment[0] - inside[first][0] >= WINDOW_S:
                peak = max(peak, *_between(inside[first], moment))
        return [*_between(inside[0], inside[-1]), peak]


def _between(before: Moment, after: Moment) -> list[float]:
    return [(after[place] - before[place]) / (after[0] - before[0]) for place in (1, 2)]


def measure(options: argparse.Namespace) -> list[Result]:
    """On every process of the job; the results are the same everywhere."""
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    master = Master(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    inner = connect(rank, size, master, C10dOptions(choose_interface(master.address, is_multi_host=True).address))
    limit_bps = parse_bandwidth(options.limit)
    wire = PacedTransport(inner, Pace(limit_bps))
    everybody = Roundtable(wire)
    results = []
    for name in options.cases.split(","):
        with Watch() as watch:
            window = take_part(CASES[name], wire, limit_bps, options.seconds)
        begun_s, ended_s, meeting_s = everybody.gather(torch.tensor(window, dtype=torch.float64))[0].tolist()
        rates = torch.tensor(watch.rates(begun_s, ended_s), dtype=torch.float64) / (limit_bps / 8)
        by_rank = everybody.gather(rates)
        least, most = by_rank.min(0).values.tolist(), by_rank.max(0).values.tolist()
        results.append(Result(name, most[2], (least[0], most[0]), (least[1], most[1]), meeting_s))
    everybody.meet()
    wire.close()
    return results


def take_part(case: Case, wire: Transport, limit_bps: float, seconds: float) -> tuple[float, float, float]:
    """Trains, or serves: when that was at full speed (all hosts have one clock), and the median of meetings."""
    options = replace(case.options, limit_bps=limit_bps)
    team = workers_of(wire, options.servers)
    if team is None:
        serve_tables(wire, options.servers, limit_bps)
        return 0.0, 0.0, 0.0
    solver = solver_of(Scheme.RING)
    profile = profile_net(solver.net, estimated_times(solver.net, 1e9))
    plan = make_plan(profile, Cluster((1,) * team.size, bandwidth_bps=limit_bps), case.request)
    with distribute(solver, team, plan, options, serving=wire if options.servers else None):
        return _trained(solver, Roundtable(team), seconds)


def _trained(solver: Solver, table: Roundtable, seconds: float) -> tuple[float, float, float]:
    solver.step(2)
    table.meet()
    begun_s, meetings = time.monotonic(), []
    is_over = False
    while not is_over:
        solver.step(1)
        met_s = time.monotonic()
        is_over = bool(table.sum(torch.tensor(float(met_s - begun_s > seconds))))  # all stop together
        meetings.append(time.monotonic() - met_s)
    ended_s = time.monotonic()
    solver.updates.drain()
    return begun_s, ended_s, statistics.median(meetings)


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
    hosts = f"{options.hosts} hosts at {options.rate}"
    print(f"limit {options.limit}, {hosts}: used of it, least and most of all hosts; in the busiest half second")
    for result in results:
        sent, received = (f"{least:.3f} … {most:.3f}" for least, most in (result.sent, result.received))
        verdict = "" if result.holds else f"   outside {LEAST} … {MOST}"
        line = f"{result.case:16} sent {sent}   received {received}   busiest {result.peak:.3f}"
        print(f"{line}   meeting {result.meeting_s * 1e3:6.1f} ms{verdict}")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 0 if all(result.holds for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
