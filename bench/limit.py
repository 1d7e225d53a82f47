"""A limit on bandwidth against the wire: what each host's link counts per second, over what --bandwidth-limit allows.

    sudo python -m bench.limit [--limit 200mbit] [--hosts 4] [--rate 1gbit] [--seconds 12] [--json OUT]

Emulated hosts (`bench/netlab.py`), real TCP, real training of a net that has far more to send than to compute, so that
the limit is what an iteration waits for: wide layers and two samples; where factors travel, narrow layers and many
samples; for trees, whose sums must all be up before values come down, once more with many layers, so that some always
travel. Every scheme by force, notified puts, the modes of staleness, a server of its own. The link's own counters (of
eth0) are read while training runs; acknowledgements and signs of life are in them, and the headers that a long packet
gets when it is cut for the wire are added. Nobody may use more than 1.05 of the limit, in either direction, and the
busiest uses at least 0.95 of it; where all workers do the same work (`even`), each of them does. The busiest half
second of any host is beside: many that send to one fill its buffers before they notice that it takes its time.

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

from bench.netlab import Lab, Links
from poseidon.plan import Cluster, PlanRequest, Scheme, make_plan, parse_bandwidth
from poseidon.run.distribute import DistributeOptions, distribute
from poseidon.run.layer_times import estimated_times
from poseidon.run.options import MANAGED
from poseidon.run.profile import profile_net
from poseidon.run.roundtable import Roundtable
from poseidon.run.servers import serve_tables, workers_of
from poseidon.solver import Solver
from poseidon.spec import parse_net, parse_solver
from poseidon.transport import Transport
from poseidon.transport.c10d import C10dOptions, Master, connect
from poseidon.transport.interface import choose_interface
from poseidon.transport.paced import PacedTransport
from poseidon.transport.pacing import Pace

ROOT = Path(__file__).resolve().parent.parent
COUNTERS = [
    [Path(f"/sys/class/net/eth0/statistics/{way}_{what}") for what in ("bytes", "packets")] for way in ("tx", "rx")
]
SEGMENT_BYTES, HEADER_BYTES = 1448, 66  # of TCP on Ethernet
LEAST, MOST = 0.95, 1.05
LOOK_S, WINDOW_S = 0.02, 0.5
Moment = tuple[float, float, float]  # when, and what had been sent and received by then


@dataclass(frozen=True, slots=True)
class Load:
    """A stack of square layers. An iteration of RING sends 6 bytes per weight at 4 workers, one of FACTORS 24 bytes per
    sample, layer and column."""

    num_layers: int
    width: int
    batch: int

    def solver(self) -> Solver:
        text = "".join(
            f"""layer {{ name: "{name}" type: "DummyData" top: "{name}" dummy_data_param {{
                shape {{ dim: {self.batch} dim: {self.width} }} data_filler {{ type: "gaussian" }} }} }}"""
            for name in ("fc0", "target")
        )
        for number in range(1, self.num_layers + 1):
            text += f"""layer {{ name: "fc{number}" type: "InnerProduct" bottom: "fc{number - 1}" top: "fc{number}"
                inner_product_param {{ num_output: {self.width} weight_filler {{ type: "xavier" }} }} }}"""
        text += f"""layer {{ name: "loss" type: "EuclideanLoss" bottom: "fc{self.num_layers}" bottom: "target"
            top: "loss" }}"""
        param = parse_solver(
            'base_lr: 1e-6 lr_policy: "fixed" max_iter: 999 random_seed: 1 snapshot_after_train: false'
        )
        param.net_param.CopyFrom(parse_net(text).net)
        return Solver(param)


WIDE = Load(num_layers=4, width=2048, batch=2)
LONG = Load(num_layers=8, width=128, batch=2048)
MANY = Load(num_layers=32, width=1024, batch=2)


@dataclass(frozen=True, slots=True)
class Case:
    """`even`: all ranks send and receive alike."""

    request: PlanRequest
    options: DistributeOptions = field(default_factory=DistributeOptions)
    load: Load = WIDE
    even: bool = True


def stale(consistency: str, servers: int = 0) -> Case:
    """Managed mode looks for the most important rows while it sends: the quickest use more than the slowest."""
    options = DistributeOptions(staleness=2, consistency=consistency, servers=servers)
    return Case(PlanRequest(scheme=Scheme.SERVER), options, even=servers == 0 and consistency != MANAGED)


CASES = {
    "ring": Case(PlanRequest(scheme=Scheme.RING)),
    "doubling": Case(PlanRequest(scheme=Scheme.DOUBLING)),
    "server": Case(PlanRequest(scheme=Scheme.SERVER)),
    "factors": Case(PlanRequest(scheme=Scheme.FACTORS), load=LONG),
    "factor-server": Case(PlanRequest(scheme=Scheme.FACTOR_SERVER)),
    "gpi server": Case(PlanRequest(scheme=Scheme.SERVER, pattern="gpi")),
    "gpi tree": Case(PlanRequest(scheme=Scheme.TREE, pattern="gpi"), even=False),
    "gpi trees": Case(PlanRequest(scheme=Scheme.TREE, pattern="gpi"), load=MANY, even=False),
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
        busiest = max(self.sent[1], self.received[1])
        idlest = min(self.sent[0], self.received[0]) if CASES[self.case].even else busiest
        return busiest <= MOST and idlest >= LEAST


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
            sent, received = (_on_the_wire(*(int(path.read_text()) for path in way)) for way in COUNTERS)
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


def _on_the_wire(num_bytes: int, num_packets: int) -> float:
    """A packet of up to 64 KB leaves as many that have headers of their own; as if each were cut once too often."""
    payload = num_bytes - HEADER_BYTES * num_packets
    return num_bytes + HEADER_BYTES * payload / SEGMENT_BYTES


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
        if rank == 0:
            print(line_of(results[-1]), file=sys.stderr, flush=True)
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
    solver = case.load.solver()
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


def line_of(result: Result) -> str:
    sent, received = (f"{least:.3f} … {most:.3f}" for least, most in (result.sent, result.received))
    verdict = "" if result.holds else f"   outside {LEAST} … {MOST}"
    line = f"{result.case:16} sent {sent}   received {received}   busiest {result.peak:.3f}"
    return f"{line}   meeting {result.meeting_s * 1e3:6.1f} ms{verdict}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", default="200mbit")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--seconds", type=float, default=12.0)
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
        print(line_of(result))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 0 if all(result.holds for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
