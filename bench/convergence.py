"""Convergence: the same training on 1, 2, 4 and 8 workers, by every scheme, exact and stale.

    poseidon data mnist data && poseidon data fashion-mnist data      # once
    python -m bench.convergence [--subjects lenet] [--workers 1,2,4,8] [--iterations 600] [--most 3] [--seconds 150]
    python -m bench.convergence --page

LeNet on MNIST, and the layers of CIFAR-10 quick on Fashion-MNIST. All workers together have the batch of the single
one, so that every exact run should follow its trajectory but for rounding; the rate falls to zero, so that the last
accuracy is no matter of the last step. Each run is a `poseidon train` of its own on this host; its figures are one line
of docs/convergence/runs.jsonl. Runs that are there are not repeated; `--most` and `--seconds` end early. `--page`
writes docs/convergence.md and its pictures.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from caffe.net_spec import NetSpec, layers, params
from models.prototxt import compact_text, solver_fields
from models.zoo.cifar10 import quick
from models.zoo.lenet import lenet
from poseidon.spec import caffe_pb2
from poseidon.tools.training_log import read_log

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "convergence"
RUNS = FOLDER / "runs.jsonl"
WORKERS = (1, 2, 4, 8)
SCHEMES = ("ring", "doubling", "server", "factors", "factor-server", "tree")
STALENESS = (0, 3)
BATCH, TEST_BATCH, NUM_TESTS = 64, 100, 100
LIMIT_POINTS = 0.2  # of the last accuracy, to the single worker's


@dataclass(frozen=True, slots=True)
class Subject:
    """A net on a data set, and the first rate of its solver."""

    title: str
    body: Callable[[NetSpec], None]
    data: str
    transform: dict[str, Any]
    base_lr: float
    weight_decay: float


SUBJECTS = {
    "lenet": Subject("LeNet on MNIST", lenet, "mnist", {"scale": 0.00390625}, 0.01, 0.0005),
    "fashion": Subject(
        "CIFAR-10 quick's layers on Fashion-MNIST", quick, "fashion_mnist", {"mean_value": [73]}, 0.001, 0.004
    ),
}


@dataclass(frozen=True, slots=True)
class Setup:
    """One run. `staleness` None: parameters are exchanged as the plan says; a number: by servers, so many clocks behind
    at most."""

    subject: str
    workers: int
    scheme: str
    staleness: int | None
    iterations: int

    @property
    def flags(self) -> list[str]:
        if self.workers == 1:
            return []
        if self.staleness is not None:
            return [f"--workers={self.workers}", f"--staleness={self.staleness}"]
        pattern = ["--pattern=gpi"] if self.scheme == "tree" else []
        return [f"--workers={self.workers}", f"--scheme={self.scheme}", *pattern]

    @property
    def label(self) -> str:
        if self.workers == 1:
            return "1 worker"
        how = self.scheme if self.staleness is None else f"staleness {self.staleness}"
        return f"{self.workers} workers, {how}"


@dataclass(frozen=True, slots=True)
class Run:
    """What a run gave. `tests`: samples, seconds, loss and accuracy; `losses`: samples, seconds, training loss."""

    setup: Setup
    tests: list[list[float]]
    losses: list[list[float]]

    @property
    def accuracy(self) -> float:
        return self.tests[-1][3]


def setups(subjects: list[str], workers: list[int], iterations: int) -> Iterator[Setup]:
    """The single worker first."""
    for subject in subjects:
        for number in workers:
            if number == 1:
                yield Setup(subject, 1, "auto", None, iterations)
                continue
            yield from (Setup(subject, number, scheme, None, iterations) for scheme in SCHEMES)
            yield from (Setup(subject, number, "server", staleness, iterations) for staleness in STALENESS)


# -- one run ----------------------------------------------------------------------------------------------------------
def net_text(subject: Subject, data: Path, batch: int) -> str:
    def spec(phase: str, size: int) -> NetSpec:
        n = NetSpec()
        part = "train" if phase == "TRAIN" else "test"
        n.data, n.label = layers.Data(
            source=str(data / f"{subject.data}_{part}_lmdb"),
            batch_size=size,
            backend=params.Data.LMDB,
            transform_param=subject.transform,
            include={"phase": caffe_pb2.Phase.Value(phase)},
            ntop=2,
        )
        return n

    training, (testing,) = spec("TRAIN", batch), spec("TEST", TEST_BATCH).to_proto().layer
    subject.body(training)
    first, *rest = training.to_proto().layer
    return compact_text(caffe_pb2.NetParameter(name=subject.title, layer=[first, testing, *rest]))


def solver_text(setup: Setup, net: Path) -> str:
    subject = SUBJECTS[setup.subject]
    return solver_fields(
        {
            "net": str(net),
            "test_iter": NUM_TESTS,
            "test_interval": max(1, setup.iterations // 5),
            "test_initialization": False,
            "base_lr": subject.base_lr,
            "lr_policy": "poly",
            "power": 1,
            "momentum": 0.9,
            "weight_decay": subject.weight_decay,
            "display": max(1, setup.iterations // 50),
            "average_loss": max(1, setup.iterations // 50),
            "max_iter": setup.iterations,
            "random_seed": 1,
            "snapshot_after_train": False,
        }
    )


def train(setup: Setup, data: Path) -> Run:
    assert BATCH % setup.workers == 0, f"a batch of {BATCH} does not divide among {setup.workers} workers"
    with tempfile.TemporaryDirectory(prefix="convergence-") as name:
        folder = Path(name)
        net, solver, log = folder / "net.prototxt", folder / "solver.prototxt", folder / "train.log"
        net.write_text(net_text(SUBJECTS[setup.subject], data, BATCH // setup.workers))
        solver.write_text(solver_text(setup, net))
        command = [sys.executable, "-m", "poseidon", "train", "--plain", f"--solver={solver}", *setup.flags]
        with log.open("w") as file:
            done = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
        if done.returncode:
            raise SystemExit(f"{setup.label}: poseidon train ended with {done.returncode}:\n{log.read_text()[-2000:]}")
        found = read_log(str(log))
    tests = [[point.iteration * BATCH, point.seconds, point.loss, point.accuracy] for point in found.scores]
    losses = [[point.iteration * BATCH, point.seconds, point.loss] for point in found.losses]
    return Run(setup, rounded(tests), rounded(losses))


def rounded(rows: list[list[Any]]) -> list[list[float]]:
    return [[float(f"{value:.6g}") for value in row] for row in rows]


# -- all runs ---------------------------------------------------------------------------------------------------------
def read_runs(path: Path = RUNS) -> list[Run]:
    if not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [Run(Setup(**entry["setup"]), entry["tests"], entry["losses"]) for entry in found]


def append(run: Run, path: Path = RUNS) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(run)) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subjects", default=",".join(SUBJECTS))
    parser.add_argument("--workers", default=",".join(map(str, WORKERS)))
    parser.add_argument("--iterations", type=int, default=600)
    parser.add_argument("--data", type=Path, default=ROOT / "data", help="where `poseidon data` made the databases")
    parser.add_argument("--most", type=int, default=sys.maxsize, help="end after so many new runs")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further run after this long")
    parser.add_argument("--page", action="store_true", help="write docs/convergence.md from the runs there are")
    options = parser.parse_args()
    if options.page:
        from bench.convergence_page import write_page

        write_page()
        return 0
    known = {run.setup for run in read_runs()}
    workers = [int(text) for text in options.workers.split(",")]
    missing = [s for s in setups(options.subjects.split(","), workers, options.iterations) if s not in known]
    end = time.monotonic() + options.seconds
    num_done = 0
    for setup in missing[: options.most]:
        if time.monotonic() > end:
            break
        database = options.data / f"{SUBJECTS[setup.subject].data}_train_lmdb"
        if not database.exists():
            print(
                f"there is no {database}: poseidon data {SUBJECTS[setup.subject].data} {os.path.relpath(options.data)}"
            )
            return 1
        run = train(setup, options.data.resolve())
        append(run)
        num_done += 1
        print(f"{setup.subject:8} {setup.label:28} {run.accuracy:.4f} in {run.tests[-1][1]:.0f} s", flush=True)
    print(f"{len(missing) - num_done} runs left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
