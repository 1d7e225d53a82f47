"""One worker of `bench/staleness.py`, on an emulated host: LeNet, on a machine that is slow now and then or for good.

How long a worker computes is emulated too: `sample_s` for each sample, slept, so that two processors can stand for four
hosts; what LeNet really computes comes on top, on both sides of every ratio.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from poseidon.plan import Cluster, CommPlan, PlanRequest, Scheme, make_plan
from poseidon.run.distribute import DistributeOptions, distribute
from poseidon.run.layer_times import estimated_times
from poseidon.run.profile import profile_net
from poseidon.solver import Solver, events
from poseidon.solver.action import Action
from poseidon.solver.passes import Pass, PassResult
from poseidon.spec import parse_solver, read_net
from poseidon.transport.c10d import C10dOptions, Master, connect
from poseidon.transport.interface import choose_interface

ROOT = Path(__file__).resolve().parent.parent
HOSTS, BATCH = 4, 16
SLOW = 3.0
ACCURACY = 0.985
TEST_INTERVAL = 50


@dataclass(frozen=True, slots=True)
class Task:
    """What the workers of one run do. `pauses`: one worker in turn is slow; `slow_host`: that one always is."""

    iterations: int
    sample_s: float
    data: str
    seed: int = 1
    staleness: int | None = None
    balance: bool = False
    pauses: bool = False
    slow_host: int | None = None
    until_accurate: bool = False


def lenet(max_iter: int, data: Path, *, tests: bool, seed: int = 1, base_lr: float = 0.01) -> Solver:
    """LeNet as in models/lenet, each of 4 workers with a quarter of its batch."""
    text = (
        f'base_lr: {base_lr} lr_policy: "inv" gamma: 0.0001 power: 0.75 momentum: 0.9 weight_decay: 0.0005 '
        f"max_iter: {max_iter} random_seed: {seed} snapshot_after_train: false solver_mode: CPU "
    )
    testing = f"test_iter: 100 test_interval: {TEST_INTERVAL} test_initialization: false"
    param = parse_solver(text + (testing if tests else ""))
    source = read_net(ROOT / "models/lenet/train_val.prototxt")
    for layer in source.net.layer:
        if layer.type == "Data":
            layer.data_param.source = str(data / Path(layer.data_param.source).name)
            layer.data_param.batch_size = BATCH if layer.include[0].phase == 0 else 100
    param.net_param.CopyFrom(source.net)
    return Solver(param)


def plan_of(solver: Solver, size: int, *, served: bool) -> CommPlan:
    """`served`: by servers only, as staleness needs it; else as the planner likes."""
    profile = profile_net(solver.net, estimated_times(solver.net, 1e9))
    request = PlanRequest(scheme=Scheme.SERVER if served else None)
    return make_plan(profile, Cluster((1,) * size, bandwidth_bps=1e9), request)


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
        is_drawn = (
            self._task.pauses and random.Random(f"pauses {self._task.seed} {iteration}").randrange(HOSTS) == self._rank
        )
        return SLOW if is_drawn or self._task.slow_host == self._rank else 1.0


def work(task: Task) -> dict[str, Any]:
    """What this worker found: iterations per second, or when the net was accurate enough, and its tests."""
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    master = Master(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    transport = connect(rank, size, master, C10dOptions(choose_interface(master.address, is_multi_host=True).address))
    solver = lenet(task.iterations, Path(task.data), tests=task.until_accurate, seed=task.seed)
    stopping = {"agree_s": 0.0} if task.until_accurate else {}  # who stops does so in the iteration of the test
    options = DistributeOptions(staleness=task.staleness, balance=task.balance, **stopping)
    plan = plan_of(solver, size, served=task.staleness is not None)
    with distribute(solver, transport, plan, options):
        solver.run = Slowed(solver.run, solver, rank, task)
        found = until_accurate(solver, task) if task.until_accurate else at_speed(solver, task)
    transport.barrier(60.0)
    transport.close()
    return found


def at_speed(solver: Solver, task: Task) -> dict[str, Any]:
    solver.step(task.iterations)  # warm, and dealt out
    solver.updates.drain()
    begun_s = time.monotonic()
    solver.step(task.iterations)
    solver.updates.drain()
    return {"per_s": task.iterations / (time.monotonic() - begun_s)}


def until_accurate(solver: Solver, task: Task) -> dict[str, Any]:
    """`tests`: iteration and accuracy of each; `reached`: the first iteration with ACCURACY, None if there was none."""
    tests: list[tuple[int, float]] = []

    def listen(event: events.Event) -> None:
        if isinstance(event, events.TestDone):
            accuracy = next(output.value for output in event.outputs if output.blob == "accuracy")
            tests.append((event.iteration, float(accuracy)))

    def is_reached() -> bool:
        return bool(tests) and tests[-1][1] >= ACCURACY

    solver.listeners.append(listen)
    solver.action = lambda: Action.STOP if is_reached() else Action.NONE
    solver.step(task.iterations)
    return {"tests": tests, "reached": tests[-1][0] if is_reached() else None}


def main() -> int:
    """`staleness_worker TASK OUT`; rank 0 writes what it found."""
    found = work(Task(**json.loads(sys.argv[1])))
    if os.environ["RANK"] == "0":
        Path(sys.argv[2]).write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
