"""Convergence: the same training on 1, 2, 4 and 8 workers, by every scheme, exact and stale.

    python -m bench.convergence [--subjects lenet] [--workers 1,2,4,8] [--iterations 600] [--most 3] [--seconds 150]
    python -m bench.convergence --page

LeNet on MNIST, the layers of CIFAR-10 quick on Fashion-MNIST, and CIFAR-10 quick on CIFAR-10. Databases are made in
data/ where they are missing and the originals are here: `--from mnist=FOLDER,cifar10=FILE`, or Debian's package
dataset-fashion-mnist (`apt-get install dataset-fashion-mnist`). What has no data is left out, and that is said.

All workers together have the batch of the single one, so that every exact run should follow its trajectory but for
rounding; the rate falls to zero, so that the last accuracy is no matter of the last step. Each run is a `poseidon
train` of its own on this host; its figures are one line of docs/convergence/runs.jsonl. Runs that are there are not
repeated; `--most` and `--seconds` end early. `--page` writes docs/convergence.md and its pictures.

Exit code 1 if an exact run ends further from the single worker than 0.2 points, among all that were asked for.
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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from caffe.net_spec import NetSpec, layers, params
from models.prototxt import compact_text, solver_fields
from models.zoo.cifar10 import quick
from models.zoo.lenet import lenet
from poseidon.data.datasets import DATASETS, make_dataset
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
    """A net on a data set, as `poseidon data` calls it, and the first rate of its solver."""

    title: str
    body: Callable[[NetSpec], None]
    data: str
    transform: dict[str, Any]
    base_lr: float
    weight_decay: float

    def database(self, part: str) -> str:
        """The name of its database to train or to test with."""
        return f"{self.data.replace('-', '_')}_{part}_lmdb"


SUBJECTS = {
    "lenet": Subject("LeNet on MNIST", lenet, "mnist", {"scale": 0.00390625}, 0.01, 0.0005),
    "fashion": Subject(
        "CIFAR-10 quick's layers on Fashion-MNIST", quick, "fashion-mnist", {"mean_value": [73]}, 0.001, 0.004
    ),
    "cifar10": Subject(
        "CIFAR-10 quick on CIFAR-10", quick, "cifar10", {"mean_value": [125.3, 123.0, 113.9]}, 0.001, 0.004
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
            source=str(data / subject.database(part)),
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


# -- data -------------------------------------------------------------------------------------------------------------
def has_data(subject: Subject, folder: Path, sources: Mapping[str, Path]) -> bool:
    """Whether its databases are there; makes them if their originals are here."""
    if all((folder / subject.database(part)).exists() for part in ("train", "test")):
        return True
    if subject.data not in sources and DATASETS[subject.data].installed() is None:
        return False
    make_dataset(subject.data, folder, [sources[subject.data]] if subject.data in sources else [])
    return True


def sources_of(text: str) -> dict[str, Path]:
    """`mnist=FOLDER,cifar10=FILE` by data set."""
    found = {}
    for part in filter(None, text.split(",")):
        name, _, path = part.partition("=")
        if name not in DATASETS or not path:
            raise SystemExit(f"--from is NAME=PATH, with names of {', '.join(DATASETS)}, got {part!r}")
        found[name] = Path(path)
    return found


# -- all runs ---------------------------------------------------------------------------------------------------------
def read_runs(path: Path = RUNS) -> list[Run]:
    if not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [Run(Setup(**entry["setup"]), entry["tests"], entry["losses"]) for entry in found]


def beside_single(runs: Sequence[Run], subject: str) -> tuple[Run, list[Run]] | None:
    """The single worker's run of a subject and all runs as long as it; of several lengths, the one with most runs. None
    if there is none."""
    mine = [run for run in runs if run.setup.subject == subject]
    singles = [run for run in mine if run.setup.workers == 1]
    if not singles:
        return None
    lengths = Counter(run.setup.iterations for run in mine)
    single = max(singles, key=lambda run: lengths[run.setup.iterations])
    return single, [run for run in mine if run.setup.iterations == single.setup.iterations]


def exact(runs: Sequence[Run]) -> list[Run]:
    """Those that must end where the single worker does."""
    return [run for run in runs if run.setup.workers > 1 and run.setup.staleness in (None, 0)]


def difference(run: Run, single: Run) -> float:
    """In points of accuracy."""
    return (run.accuracy - single.accuracy) * 100


def outside(runs: Sequence[Run], single: Run) -> list[Run]:
    return [run for run in exact(runs) if abs(difference(run, single)) > LIMIT_POINTS]


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
    parser.add_argument("--from", default="", dest="sources", help="NAME=PATH,…: originals to make databases from")
    parser.add_argument("--most", type=int, default=sys.maxsize, help="end after so many new runs")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further run after this long")
    parser.add_argument("--page", action="store_true", help="write docs/convergence.md from the runs there are")
    options = parser.parse_args()
    if options.page:
        from bench.convergence_page import write_page

        write_page()
        return 0
    return run_missing(options)


def run_missing(options: argparse.Namespace) -> int:
    """Runs what is not there yet; 1 if something ended too far from the single worker."""
    known = {run.setup for run in read_runs()}
    sources = sources_of(options.sources)
    subjects = []
    for name in options.subjects.split(","):
        if has_data(SUBJECTS[name], options.data, sources):
            subjects.append(name)
        else:
            data = SUBJECTS[name].data
            print(f"left out   {name}: its data is not here: poseidon data {data} {os.path.relpath(options.data)}")
    workers = [int(text) for text in options.workers.split(",")]
    missing = [s for s in setups(subjects, workers, options.iterations) if s not in known]
    end = time.monotonic() + options.seconds
    num_done = 0
    for setup in missing[: options.most]:
        if time.monotonic() > end:
            break
        run = train(setup, options.data.resolve())
        append(run)
        num_done += 1
        print(f"{setup.subject:8} {setup.label:28} {run.accuracy:.4f} in {run.tests[-1][1]:.0f} s", flush=True)
    print(f"{len(missing) - num_done} runs left")
    return conclude(read_runs(), subjects)


def conclude(runs: Sequence[Run], subjects: Sequence[str]) -> int:
    """Names what ended too far from the single worker; the exit code."""
    has_any = False
    for name in subjects:
        found = beside_single(runs, name)
        for run in outside(found[1], found[0]) if found is not None else ():
            print(f"outside    {name}, {run.setup.label}: {difference(run, found[0]):+.2f} points from 1 worker's")
            has_any = True
    return 1 if has_any else 0


if __name__ == "__main__":
    sys.exit(main())
