"""The papers' scaling curves, again: what each way to exchange gradients would give on the papers' clusters.

    python -m bench.papers [--nets alexnet,vgg19] [--seconds 200] [--jobs 2] [--page]

Compute times are published ones of a single GPU; communication is planned and played by our planner
(`poseidon/plan`), which the lab checks (`bench/lab.py`). Points go to docs/papers/points.csv one by one; what is there
already is not computed again, so that a run that was ended goes on where it stopped, unless planner or simulator have
changed since: every point says by which code it was computed. `--page` writes docs/papers.md and its pictures.

Systems, from the papers' to ours:

    server at the end   dense; everything leaves when backward is over, forward begins when all is back
    wait-free           dense; a layer's gradient leaves when backward has passed it; forward waits for all
    ring, server        our runtime with one scheme: forward waits layer by layer
    factors             the same, with factors wherever a layer has them (sufficient factor broadcasting)
    plan                our runtime, schemes, sizes and order planned together
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path

from models.generate import bench_text
from poseidon.net import Net
from poseidon.plan import PAYLOAD_SHARE, Cluster, CommPlan, LayerProfile, NetProfile, PlanRequest, Scheme, make_plan
from poseidon.plan.sweep import scheme_shares
from poseidon.plan.sweep_table import schemes_text
from poseidon.run.layer_times import estimated_times, scaled_times
from poseidon.run.profile import profile_net
from poseidon.simulate import Machines, play

ROOT = Path(__file__).resolve().parent.parent
CODE = ("plan", "simulate")
FOLDER = ROOT / "docs" / "papers"
POINTS = FOLDER / "points.csv"
RATES_GBIT = (1, 2, 5, 10, 20, 40)
NODES = (1, 2, 4, 8, 16, 32)
MANY_NODES, FAST_GBIT = (64, 128, 256, 512, 1024), (10, 40)
REBUILD_FLOPS = 6e12
PLAYED_ITERATIONS = 9
AT_ONCE = 16  # points handed to processes before the clock is looked at


@dataclass(frozen=True, slots=True)
class Subject:
    """A net as a paper trained it: the batch of one worker, and what one GPU takes for an iteration, and why so."""

    title: str
    batch: int
    compute_s: float | None  # None: multiplications at GOOGLENET_FLOPS
    basis: str


# GoogLeNet's published 257 images/s are 2.4 TFLOP/s at 3 × 2 × 1.58 G multiplications an image: what nets of many small
# convolutions got from that GPU. VGG's large ones got 4.1.
GOOGLENET_FLOPS = 2.4e12
SUBJECTS = {
    "alexnet": Subject("AlexNet", 256, 1.2, "K20"),
    "googlenet": Subject("GoogLeNet", 32, 0.36, "K20"),
    "cifar10_quick": Subject("CIFAR-10 quick", 100, 0.020, "K20"),
    "vgg19": Subject("VGG-19", 32, 32 / 35.5, "35.5 images/s, Titan X"),
    "vgg19_22k": Subject("VGG19-22K", 32, 32 / 34.6, "34.6 images/s, Titan X"),
    "inception_v3": Subject("Inception-V3", 32, None, "multiplications at 2.4 TFLOP/s"),
    "resnet152": Subject("ResNet-152", 32, None, "multiplications at 2.4 TFLOP/s"),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One point to compute."""

    net: str
    gbit: int
    nodes: int
    system: str


@dataclass(frozen=True, slots=True)
class Point:
    """A line of points.csv."""

    net: str
    gbit: int
    nodes: int
    system: str
    batch: int
    compute_s: float
    iteration_s: float
    mb_sent: float
    schemes: str
    code: str = ""

    @property
    def cell(self) -> Cell:
        return Cell(self.net, self.gbit, self.nodes, self.system)

    @property
    def speed_up(self) -> float:
        return self.nodes * self.compute_s / self.iteration_s


# -- systems ----------------------------------------------------------------------------------------------------------
Forecast = tuple[float, CommPlan]
"""Seconds of an iteration, and the plan behind it."""


def planned(profile: NetProfile, cluster: Cluster, scheme: Scheme | None = None) -> Forecast:
    plan = make_plan(profile, cluster, PlanRequest(scheme=scheme))
    return plan.iteration_s, plan


def wait_free(profile: NetProfile, cluster: Cluster) -> Forecast:
    """A barrier before forward; the bytes of servers on all workers are those of a ring."""
    return planned(replace(profile, needs_all_gradients=True), cluster, Scheme.RING)


def at_the_end(profile: NetProfile, cluster: Cluster) -> Forecast:
    """The network alone, after the compute."""
    idle = tuple(LayerProfile(layer.name, 0.0, 0.0, layer.params) for layer in profile.layers)
    network_s, plan = wait_free(replace(profile, layers=idle, between_s=0.0), cluster)
    return profile.compute_s + network_s, plan


def without(part: str, profile: NetProfile, cluster: Cluster) -> Forecast:
    """Our plan where one thing costs nothing: which one binds?"""
    free = {
        "latency": {"latency_s": 0.0, "send_s": 0.0},
        "wire": {"bandwidth_bps": 1e18},
        "rebuilding": {"flops": math.inf},
    }
    return planned(profile, replace(cluster, **free[part]))


def on_poor_network(profile: NetProfile, cluster: Cluster) -> Forecast:
    """Our plan where links give 0.7 of what they should and messages take five times as long."""
    poor = replace(cluster, bandwidth_bps=0.7 * cluster.bandwidth_bps, latency_s=5 * cluster.latency_s)
    return planned(profile, poor)


def played(
    profile: NetProfile, cluster: Cluster, jitter: float = 0.0, among: tuple[Scheme, ...] = tuple(Scheme)
) -> Forecast:
    """Our plan message by message, on workers whose compute varies by so much."""
    plan = make_plan(profile, cluster, PlanRequest(among=among))
    return play(plan, profile, Machines(cluster, jitter=jitter), PLAYED_ITERATIONS).steady_s, plan


SYSTEMS: dict[str, Callable[[NetProfile, Cluster], Forecast]] = {
    "server at the end": at_the_end,
    "wait-free": wait_free,
    "ring": partial(planned, scheme=Scheme.RING),
    "server": partial(planned, scheme=Scheme.SERVER),
    "factors": partial(planned, scheme=Scheme.FACTORS),
    "plan": planned,
}
PARTS = ("latency", "wire", "rebuilding")
POOR = "plan on a poor network"
PLAYED, JITTERY, UNOWNED = "plan, played", "plan, played with 2 % jitter", "plan without owners, played"
EVERYWHERE = tuple(scheme for scheme in Scheme if scheme not in (Scheme.SERVER, Scheme.FACTOR_SERVER))
EXPLAINED = {
    **{f"plan without {part}": partial(without, part) for part in PARTS},
    POOR: on_poor_network,
    PLAYED: played,
    JITTERY: partial(played, jitter=0.02),
    UNOWNED: partial(played, among=EVERYWHERE),
}


@dataclass(frozen=True, slots=True)
class Goal:
    """A speed-up to reach, and the one that was published for about the same."""

    net: str
    nodes: int
    gbit: int
    least: float
    published: float


GOALS = (
    *(Goal("alexnet", 8, gbit, 7.7, 4.5) for gbit in (40, 10)),
    *(Goal("googlenet", 8, gbit, 7.7, 4.0) for gbit in (40, 10)),
    *(Goal("cifar10_quick", 8, gbit, 7.0, 4.0) for gbit in (40, 10)),
    Goal("vgg19_22k", 16, 10, 15.8, 15.5),
    Goal("vgg19_22k", 32, 40, 31.0, 29.5),
    *(Goal(net, 32, gbit, 31.5, 31.5) for net in ("inception_v3", "resnet152") for gbit in (40, 10)),
)


# -- computing --------------------------------------------------------------------------------------------------------
@cache
def profile_of(name: str) -> NetProfile:
    subject = SUBJECTS[name]
    net = Net.from_text(bench_text(name, subject.batch), phase="TRAIN", seed=1)
    times = estimated_times(net, GOOGLENET_FLOPS)
    return profile_net(net, times if subject.compute_s is None else scaled_times(times, subject.compute_s))


def cluster_of(cell: Cell) -> Cluster:
    return Cluster((1,) * cell.nodes, cell.gbit * 1e9 * PAYLOAD_SHARE, flops=REBUILD_FLOPS)


@cache
def code_digest() -> str:
    """Of all that decides a point."""
    files = [Path(__file__), *(path for name in CODE for path in sorted((ROOT / "poseidon" / name).rglob("*.py")))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:8]


def compute(cell: Cell, profile: NetProfile) -> Point:
    iteration_s, plan = {**SYSTEMS, **EXPLAINED}[cell.system](profile, cluster_of(cell))
    return Point(
        net=cell.net,
        gbit=cell.gbit,
        nodes=cell.nodes,
        system=cell.system,
        batch=SUBJECTS[cell.net].batch,
        compute_s=profile.compute_s,
        iteration_s=iteration_s,
        mb_sent=plan.bytes_sent / 1e6,
        schemes=schemes_text(scheme_shares(plan)),
        code=code_digest(),
    )


def computed(cell: Cell) -> Point:
    """In a process of the pool, which keeps profiles."""
    return compute(cell, profile_of(cell.net))


def cells_of(net: str) -> Iterator[Cell]:
    """What a net's part of the page shows, the goals first."""
    for goal in GOALS:
        if goal.net == net:
            yield from (Cell(net, goal.gbit, goal.nodes, system) for system in (*SYSTEMS, *EXPLAINED))
    for nodes in (*NODES[1:], *MANY_NODES):
        for gbit in FAST_GBIT if nodes in MANY_NODES else RATES_GBIT:
            yield from (Cell(net, gbit, nodes, system) for system in SYSTEMS)


def read_points(path: Path = POINTS) -> dict[Cell, Point]:
    if not path.exists():
        return {}
    kinds = {"gbit": int, "nodes": int, "batch": int, "compute_s": float, "iteration_s": float, "mb_sent": float}
    with path.open(newline="") as file:
        rows = [{key: kinds.get(key, str)(value) for key, value in row.items()} for row in csv.DictReader(file)]
    return {point.cell: point for point in (Point(**row) for row in rows)}  # of two the later one


def write_points(points: Iterable[Point], path: Path = POINTS) -> None:
    """Each once, in order; a run that is ended meanwhile leaves the file as it was."""
    kept = sorted(points, key=lambda point: (list(SUBJECTS).index(point.net), point.nodes, point.gbit, point.system))
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    for point in kept:
        append(point, new)
    if kept:
        new.replace(path)


def append(point: Point, path: Path = POINTS) -> None:
    path.parent.mkdir(exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow([field.name for field in fields(Point)])
        values = [getattr(point, field.name) for field in fields(Point)]
        writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in values])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default=",".join(SUBJECTS))
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further point after this long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes; as many as there are processors")
    parser.add_argument("--page", action="store_true", help="write docs/papers.md from the points there are")
    options = parser.parse_args()
    if options.page:
        from bench.papers_page import write_page

        write_page()
        return 0
    end = time.monotonic() + options.seconds
    write_points(read_points().values())  # earlier ones had fewer columns
    for net in options.nets.split(","):
        known = {cell for cell, point in read_points().items() if point.code == code_digest()}
        missing = [cell for cell in dict.fromkeys(cells_of(net)) if cell not in known]
        if missing and time.monotonic() < end:
            with ProcessPoolExecutor(options.jobs) as pool:
                for begin in range(0, len(missing), AT_ONCE):
                    if time.monotonic() > end:
                        break
                    for point in pool.map(computed, missing[begin : begin + AT_ONCE]):
                        append(point)
        points = read_points()
        left = [c for c in dict.fromkeys(cells_of(net)) if c not in points or points[c].code != code_digest()]
        print(f"{net}: {len(left)} points left", flush=True)
    write_points(read_points().values())
    return 0


if __name__ == "__main__":
    sys.exit(main())
