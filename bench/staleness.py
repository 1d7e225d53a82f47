"""Machines that are not equally fast, and a network that is short: what staleness, balance and managed mode gain.

    sudo python -m bench.staleness [--parts throughput,samples,balance,managed] [--iterations 60] [--json OUT]

    throughput   4 hosts × 1 Gbit/s; in every iteration one worker, drawn at random, takes 3 times as long: iterations
                 per second with s = 3 over those with s = 0                                              at least 1.5
    samples      the same pauses, LeNet on MNIST: samples until 98.5 % with s = 3 over those with s = 0   at most 1.2
    balance      one host is 3 times slower for good: --balance over equal batches                        at least 1.8
    managed      a quarter of the bytes that s = 0 sends per clock, in managed mode: clocks until the loss falls to
                 TARGET, the most important rows first over rows at random; medians of 5 seeds            at most 0.9

Hosts are emulated (`bench/netlab.py`), and so is how long a worker computes: SAMPLE_S for each sample, slept, so that
two processors can stand for four hosts; what LeNet really computes comes on top, on both sides of every ratio.

`managed` counts clocks and bytes, not seconds: its workers are threads of one process, and a budget is bytes per clock.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from poseidon.comm.stale.hub import Hub, HubOptions
from poseidon.comm.stale.managed import Managed, ManagedOptions, PerClock, RowOrder, Unlimited
from poseidon.plan import Cluster, CommPlan, PlanRequest, Scheme, make_plan
from poseidon.run.distribute import DistributeOptions, distribute
from poseidon.run.layer_times import estimated_times
from poseidon.run.managed_updates import ManagedUpdates
from poseidon.run.profile import profile_net
from poseidon.run.roundtable import Roundtable
from poseidon.run.shards import count_labels_together, share_batch
from poseidon.solver import Solver, events
from poseidon.solver.action import Action
from poseidon.solver.passes import Pass, PassResult
from poseidon.spec import parse_solver, read_net
from poseidon.transport import Transport
from poseidon.transport.c10d import C10dOptions, Master, connect
from poseidon.transport.inproc import run_workers
from poseidon.transport.interface import choose_interface

ROOT = Path(__file__).resolve().parent.parent
HOSTS, BATCH = 4, 16
SAMPLE_S = 0.1 / BATCH
SLOW = 3.0
ACCURACY = 0.985
TARGET = 0.4  # of the loss, smoothed over SMOOTH clocks of all workers
SMOOTH = 20
MANAGED_STALENESS = 32  # with fewer clocks most of a quarter goes to rows that are due
LIMITS = {"throughput": (1.5, None), "samples": (None, 1.2), "balance": (1.8, None), "managed": (None, 0.9)}


# -- a job ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Task:
    """What the workers of one run do. `pauses`: one worker in turn is slow; `slow_host`: that one always is."""

    iterations: int
    staleness: int | None = None
    balance: bool = False
    pauses: bool = False
    slow_host: int | None = None
    until_accurate: bool = False
    sample_s: float = SAMPLE_S


def lenet(max_iter: int, *, tests: bool, batch: int = BATCH, seed: int = 1) -> Solver:
    """LeNet as in models/lenet, each of 4 workers with a quarter of its batch."""
    text = (
        f'base_lr: 0.01 lr_policy: "inv" gamma: 0.0001 power: 0.75 momentum: 0.9 weight_decay: 0.0005 '
        f"max_iter: {max_iter} random_seed: {seed} snapshot_after_train: false solver_mode: CPU "
    )
    param = parse_solver(text + ("test_iter: 100 test_interval: 100 test_initialization: false" if tests else ""))
    source = read_net(ROOT / "models/lenet/train_val.prototxt")
    for layer in source.net.layer:
        if layer.type == "Data":
            layer.data_param.source = str(ROOT / layer.data_param.source)
            layer.data_param.batch_size = batch if layer.include[0].phase == 0 else 100
    param.net_param.CopyFrom(source.net)
    return Solver(param)


def served_plan(solver: Solver, size: int) -> CommPlan:
    profile = profile_net(solver.net, estimated_times(solver.net, 1e9))
    return make_plan(profile, Cluster((1,) * size, bandwidth_bps=1e9), PlanRequest(scheme=Scheme.SERVER))


class Slowed:
    """A pass that takes as long as a slower machine's."""

    def __init__(self, run: Pass, solver: Solver, rank: int, task: Task) -> None:
        self._run, self._solver, self._rank, self._task = run, solver, rank, task

    def __call__(self, *, backward: bool) -> PassResult:
        self._solver.net.settle()  # a machine computes with what it has waited for
        num_samples = self._solver.net.graph.shapes["data"][0]
        time.sleep(self._task.sample_s * num_samples * self._factor(self._solver.iter))
        return self._run(backward=backward)

    def _factor(self, iteration: int) -> float:
        is_drawn = self._task.pauses and random.Random(f"pauses {iteration}").randrange(HOSTS) == self._rank
        return SLOW if is_drawn or self._task.slow_host == self._rank else 1.0


def work(task: Task) -> dict[str, float]:
    """One of the hosts' workers."""
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    master = Master(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    transport = connect(rank, size, master, C10dOptions(choose_interface(master.address, is_multi_host=True).address))
    solver = lenet(task.iterations, tests=task.until_accurate)
    reached: list[int] = []

    def listen(event: events.Event) -> None:
        if isinstance(event, events.TestDone):
            accuracy = next(output.value for output in event.outputs if output.name == "accuracy")
            if rank == 0:
                print(f"# iteration {event.iteration}: {accuracy:.4f}", file=sys.stderr, flush=True)
            if accuracy >= ACCURACY:
                reached.append(event.iteration)

    solver.listeners.append(listen)
    solver.action = lambda: Action.STOP if reached else Action.NONE
    options = DistributeOptions(staleness=task.staleness, balance=task.balance, agree_s=0.0)
    with distribute(solver, transport, served_plan(solver, size), options):
        solver.run = Slowed(solver.run, solver, rank, task)
        if task.until_accurate:
            solver.step(task.iterations)
            found = {"iterations": float(reached[0] if reached else task.iterations), "reached": float(bool(reached))}
        else:
            solver.step(task.iterations)  # warm, and dealt out
            solver.updates.drain()
            begun_s = time.monotonic()
            solver.step(task.iterations)
            solver.updates.drain()
            found = {"per_s": task.iterations / (time.monotonic() - begun_s)}
    transport.barrier(60.0)
    transport.close()
    return found


def in_lab(task: Task, rate: str) -> dict[str, float]:
    """What rank 0 found."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [
            sys.executable,
            "-m",
            "bench.netlab",
            "run",
            "-n",
            str(HOSTS),
            "--rate",
            rate,
            "--name",
            "stale",
            "--",
        ]
        command += [sys.executable, "-m", "bench.staleness", "--worker", json.dumps(asdict(task)), "--out", str(out)]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        if done.returncode or not out.exists():
            raise SystemExit(f"{task} failed (exit code {done.returncode})")
        return json.loads(out.read_text())


# -- parts ------------------------------------------------------------------------------------------------------------
def throughput(options: argparse.Namespace) -> dict[str, float]:
    rates = [
        in_lab(Task(options.iterations, staleness=clocks, pauses=True), options.rate)["per_s"] for clocks in (0, 3)
    ]
    return {"s0_per_s": rates[0], "s3_per_s": rates[1], "ratio": rates[1] / rates[0]}


def samples(options: argparse.Namespace) -> dict[str, float]:
    task = Task(options.most, pauses=True, until_accurate=True, sample_s=options.sample_s)
    found = [in_lab(replace(task, staleness=clocks), options.rate) for clocks in (0, 3)]
    if not all(entry["reached"] for entry in found):
        raise SystemExit(f"{ACCURACY:.1%} was not reached within {options.most} iterations: {found}")
    counts = [entry["iterations"] * HOSTS * BATCH for entry in found]
    return {"s0_samples": counts[0], "s3_samples": counts[1], "ratio": counts[1] / counts[0]}


def balance(options: argparse.Namespace) -> dict[str, float]:
    rates = [
        in_lab(Task(options.iterations, balance=is_on, slow_host=HOSTS - 1), options.rate)["per_s"]
        for is_on in (False, True)
    ]
    return {"equal_per_s": rates[0], "balanced_per_s": rates[1], "ratio": rates[1] / rates[0]}


def managed(options: argparse.Namespace) -> dict[str, float]:
    whole = bytes_per_clock()
    budget = options.budget * whole
    clocks: dict[RowOrder, list[float]] = {RowOrder.IMPORTANCE: [], RowOrder.RANDOM: []}
    for seed, order in itertools.product(range(options.seeds), clocks):
        losses, sent = losses_of(options.clocks, order, budget, seed)
        clocks[order].append(first_below(losses, options.target))
        shown = (
            f"seed {seed} {order.value:12} {clocks[order][-1]:6.0f} clocks, {sent / whole:.2f} of the bytes of s = 0"
        )
        print(f"# {shown}", file=sys.stderr, flush=True)
    first, other = (statistics.median(found) for found in clocks.values())
    return {"importance_clocks": first, "random_clocks": other, "budget_bytes": budget, "ratio": first / other}


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, float]]] = {
    "throughput": throughput,
    "samples": samples,
    "balance": balance,
    "managed": managed,
}


# -- managed mode in one process --------------------------------------------------------------------------------------
def bytes_per_clock() -> float:
    """What a worker sends per clock with s = 0: all rows there, all values back."""
    _, sent = losses_of(6, RowOrder.IMPORTANCE, None, 0, staleness=0)
    return sent


def losses_of(
    clocks: int, order: RowOrder, budget: float | None, seed: int, staleness: int = MANAGED_STALENESS
) -> tuple[list[float], float]:
    """The mean loss over workers of every clock, and the mean bytes that one sent per clock."""
    torch.set_num_threads(1)

    def act(transport: Transport) -> tuple[list[float], float]:
        solver = lenet(clocks, tests=False, seed=1 + seed)
        plan = served_plan(solver, transport.size)
        table = Roundtable(transport)
        share_batch(solver.net, transport.rank, transport.size)
        count_labels_together(solver.net, None)
        allowance = Unlimited() if budget is None else PerClock(budget)
        outgoing = Managed(allowance, ManagedOptions(order, seed=seed * HOSTS + transport.rank))
        updates = ManagedUpdates(solver, plan, Hub(transport, HubOptions(outgoing=outgoing)), staleness, table.mean)
        solver.updates = updates
        losses: list[float] = []
        solver.listeners.append(
            lambda event: losses.append(float(event.loss)) if isinstance(event, events.IterationDone) else None
        )
        solver.step(clocks)
        sent = updates.hub.mailbox.bytes_sent / clocks
        updates.drain()
        updates.close()
        return losses, sent

    by_rank = run_workers(HOSTS, act, timeout_s=3600)
    means = [statistics.fmean(column) for column in zip(*(losses for losses, _ in by_rank), strict=True)]
    return means, statistics.fmean(sent for _, sent in by_rank)


def first_below(losses: Sequence[float], target: float) -> float:
    """The first clock at which the mean of the last SMOOTH losses is below the target; one more than all if never."""
    for clock in range(SMOOTH, len(losses) + 1):
        if statistics.fmean(losses[clock - SMOOTH : clock]) <= target:
            return float(clock)
    return float(len(losses) + 1)


# -- the command ------------------------------------------------------------------------------------------------------
def verdict(part: str, ratio: float) -> str:
    least, most = LIMITS[part]
    limit = f"at least {least}" if least is not None else f"at most {most}"
    holds = (least is None or ratio >= least) and (most is None or ratio <= most)
    return f"{limit}: {'holds' if holds else 'MISSED'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--iterations", type=int, default=60, help="measured, and as many before (60)")
    parser.add_argument("--most", type=int, default=4000, help="iterations until ACCURACY (4000)")
    parser.add_argument("--sample-s", type=float, default=0.02 / BATCH, help="of `samples`: seconds per sample")
    parser.add_argument("--clocks", type=int, default=200, help="of `managed` (200)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--target", type=float, default=TARGET)
    parser.add_argument("--budget", type=float, default=0.25, help="of what s = 0 sends per clock (0.25)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        found = work(Task(**json.loads(options.worker)))
        if os.environ["RANK"] == "0":
            options.out.write_text(json.dumps(found))
        return 0
    results = {}
    for part in options.parts.split(","):
        results[part] = PARTS[part](options)
        figures = ", ".join(f"{name} {value:.4g}" for name, value in results[part].items() if name != "ratio")
        ratio = results[part]["ratio"]
        print(f"{part:12} {ratio:6.2f}   {verdict(part, ratio)}   ({figures})", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if all("holds" in verdict(part, found["ratio"]) for part, found in results.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
