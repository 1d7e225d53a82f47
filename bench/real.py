"""Real training on an emulated cluster: our worker beside PyTorch's DistributedDataParallel, compute and all.

    sudo python -m bench.real [--hosts 4] [--rate 200mbit] [--batch 8] [--iterations 6] [--rounds 2] [--json OUT]

AlexNet on hosts that are network namespaces (`netlab.py`), one thread each, real TCP over shaped links, every layer
computed by the processor. Both contenders start from the same weights and read the same records; ours is what `poseidon
train` runs, DDP's loop is hand-written (`torch_loop.py`) with the bucket size that makes it fastest. Nothing is drawn
at random (no dropout, crops, mirrors), so that both must show the same losses, averaged over workers: the largest
relative difference is printed. One contender's processes run at a time, contenders take turns; the figure is the median
of DDP's time / ours over rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Subset

from bench.net import copy_weights
from bench.solver import SUBJECTS, param_on
from bench.torch_loop import LmdbImages, Recipe, TorchLoop
from bench.torch_nets import build
from poseidon.net import Net
from poseidon.plan import PlanRequest, parse_scheme
from poseidon.run.distribute import DistributeOptions
from poseidon.run.planning import Links
from poseidon.run.rendezvous import find_place
from poseidon.run.worker import Face, WorkerOptions, train_worker
from poseidon.solver import NetOptions, Solver, events
from poseidon.spec import array_to_datum, caffe_pb2, net_source

ROOT = Path(__file__).resolve().parent.parent
NET, SIDE, SCALE = "alexnet", 227, 0.02
WARM_UP = 2
DDP_BUCKETS = ("25", "100")
LIMIT, MOST_DIFFERENCE = 5.0, 1e-3


def write_images(path: Path, count: int) -> None:
    """Raw images that need no crop."""
    chance = np.random.default_rng(1)
    with lmdb.open(str(path), map_size=1 << 30) as environment, environment.begin(write=True) as transaction:
        for number in range(count):
            pixels = chance.integers(0, 256, (3, SIDE, SIDE), dtype=np.uint8)
            transaction.put(b"%08d" % number, array_to_datum(pixels, number % 1000).SerializeToString())


def param_of(database: str, batch: int) -> caffe_pb2.SolverParameter:
    """AlexNet's solver, without anything that is drawn at random."""
    param = param_on(NET, database, batch)
    layers = [layer for layer in param.net_param.layer if layer.type != "Dropout"]
    for layer in layers:
        if layer.type == "Data":
            layer.ClearField("transform_param")
            layer.transform_param.scale = SCALE
    del param.net_param.layer[:]
    param.net_param.layer.extend(layers)
    return param


# -- one worker -------------------------------------------------------------------------------------------------------
def work_ours(options: argparse.Namespace) -> dict[str, Any]:
    place = find_place(os.environ)
    assert place is not None, "netlab sets RANK and the rest"
    scheme = None if options.contender == "ours" else parse_scheme(options.contender)
    losses: list[float] = []
    seconds: list[float] = []

    def hear(event: events.Event) -> None:
        if isinstance(event, events.IterationDone):
            losses.append(float(event.loss))

    def train(solver: Solver, _resume: str) -> None:
        solver.listeners.append(hear)
        solver.step(WARM_UP)
        solver.updates.drain()
        begin = time.perf_counter()
        solver.step(options.iterations)
        solver.updates.drain()
        seconds.append((time.perf_counter() - begin) / options.iterations)

    def show(lines: Sequence[str]) -> None:
        print("\n".join(lines), file=sys.stderr, flush=True)

    worker = WorkerOptions(NetOptions(), PlanRequest(scheme=scheme), DistributeOptions(), Links(), threads=1)
    face = Face((), show, train, lambda problem: print(problem, file=sys.stderr))
    train_worker(param_of(options.database, options.batch), place, worker, face)
    return {"seconds": seconds[0], "losses": losses}


def work_ddp(options: argparse.Namespace) -> dict[str, Any]:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    images = LmdbImages(options.database, Recipe(scale=SCALE))
    own: Any = Subset(images, range(rank, len(images), size))
    net = build(NET)
    for child in net.modules():
        if isinstance(child, nn.Dropout):
            child.p = 0.0
    param = param_of(options.database, options.batch)
    copy_weights(Net(net_source(param.net_param), phase="TRAIN", seed=param.random_seed), net)
    bucket_mb = float(options.contender.partition("@")[2])
    ddp = DistributedDataParallel(net, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)
    loop = TorchLoop(ddp, own, SUBJECTS[NET].schedule, options.batch, 0)
    losses = loop.step(WARM_UP)
    dist.barrier()
    begin = time.perf_counter()
    losses += loop.step(options.iterations)
    seconds = (time.perf_counter() - begin) / options.iterations
    dist.destroy_process_group()
    return {"seconds": seconds, "losses": torch.stack(losses).tolist()}


# -- the lab ----------------------------------------------------------------------------------------------------------
def run_once(contender: str, options: argparse.Namespace, database: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.netlab", "run", "-n", str(options.hosts), "--rate", options.rate, "--"]
    command += [sys.executable, "-m", "bench.real", "--contender", contender, "--database", str(database)]
    command += ["--batch", str(options.batch), "--iterations", str(options.iterations), "--out", str(database.parent)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=options.timeout)
    if done.returncode:
        raise SystemExit(f"{contender} failed (exit code {done.returncode}):\n{done.stderr[-3000:]}")
    if options.plans and not contender.startswith("ddp"):
        print(done.stderr, file=sys.stderr)
    by_rank = [json.loads((database.parent / f"{rank}.json").read_text()) for rank in range(options.hosts)]
    found = {
        "seconds": max(own["seconds"] for own in by_rank),
        "losses": np.mean([own["losses"] for own in by_rank], axis=0).tolist(),
    }
    print(f"  {contender}: {found['seconds']:.3f} s", file=sys.stderr, flush=True)
    return found


def compare(options: argparse.Namespace) -> dict[str, Any]:
    contenders = ["ours", *(f"ddp@{bucket}" for bucket in DDP_BUCKETS), *filter(None, options.forced.split(","))]
    rounds: list[dict[str, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory(prefix="bench-real-") as folder:
        database = Path(folder) / "images"
        write_images(database, options.hosts * options.batch * (WARM_UP + options.iterations))
        for _ in range(options.rounds):
            rounds.append({contender: run_once(contender, options, database) for contender in contenders})
    seconds = {name: statistics.median(turn[name]["seconds"] for turn in rounds) for name in contenders}
    best = min((name for name in contenders if name.startswith("ddp")), key=seconds.__getitem__)
    ratios = [turn[best]["seconds"] / turn["ours"]["seconds"] for turn in rounds]
    losses = np.array([rounds[0][name]["losses"] for name in ("ours", best)])
    return {
        "hosts": options.hosts,
        "rate": options.rate,
        "batch": options.batch,
        "seconds": seconds,
        "times_ddp": statistics.median(ratios),
        "spread": [min(ratios), max(ratios)],
        "losses": losses.tolist(),
        "loss_difference": float(np.max(np.abs(losses[0] - losses[1]) / np.abs(losses[1]))),
    }


def options_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--forced", default="", help="also these schemes by force, separated by commas")
    parser.add_argument("--plans", action="store_true", help="show our plans")
    parser.add_argument("--timeout", type=float, default=900.0)
    parser.add_argument("--json", type=Path)
    for hidden in ("--contender", "--database"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main() -> int:
    options = options_of()
    if options.contender:
        torch.set_num_threads(1)
        found = (work_ddp if options.contender.startswith("ddp") else work_ours)(options)
        (options.out / f"{os.environ['RANK']}.json").write_text(json.dumps(found))
        return 0
    result = compare(options)
    for contender, seconds in result["seconds"].items():
        print(f"{contender:14}{seconds:>9.3f} s")
    low, high = result["spread"]
    print(f"best DDP / ours {result['times_ddp']:.2f} ({low:.2f} - {high:.2f}), the limit {LIMIT:.1f}")
    print(f"losses differ by {result['loss_difference']:.1e} at most, the limit {MOST_DIFFERENCE:.0e}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if result["times_ddp"] >= LIMIT and result["loss_difference"] <= MOST_DIFFERENCE else 1


if __name__ == "__main__":
    sys.exit(main())
