"""A whole solver step, data, forward, backward and update, beside the same loop hand-written in PyTorch.

    python -m bench.solver [--nets lenet,alexnet] [--turns 9] [--threads 2] [--json OUT]

LeNet reads raw 28 × 28 records, AlexNet JPEGs of 256 × 256 that are decoded, cropped and flipped at random; both
contenders read the same database with the same options, and start from the same weights. They take turns in one
process. A turn begins with steps that are not counted, until all batches made ahead are used up, so that every counted
step pays for one batch. PyTorch's loop runs with 0, 1 and 2 loader processes.

The ratio is the median over turns of ours / PyTorch's time per step, with the number of loaders that makes it highest;
the limit is 1/0.97.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import lmdb
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.data import MEANS, write_database
from bench.net import copy_weights
from bench.torch_loop import LmdbImages, Recipe, Schedule, TorchLoop
from bench.torch_nets import build
from poseidon.solver import Solver, events
from poseidon.spec import array_to_datum, caffe_pb2, read_net, read_solver

MODELS = Path(__file__).resolve().parent.parent / "models"
LIMIT = 1 / 0.97
NUM_LOADERS = (0, 1, 2)
# More than either contender makes ahead: 4 batches here, 2 per loader there.
UNCOUNTED_STEPS = 6


@dataclass(frozen=True, slots=True)
class Subject:
    """A net of models/ to be measured, and what its prototxts say, in PyTorch's terms."""

    batch: int
    steps_per_turn: int
    recipe: Recipe
    schedule: Schedule
    write: Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Result:
    net: str
    batch: int
    ours_ms: float
    torch_ms: float
    num_loaders: int
    ratio: float
    lowest_ratio: float
    highest_ratio: float
    limit: float
    loss_difference: float | None

    @property
    def holds(self) -> bool:
        return self.ratio <= self.limit


def write_noise(path: str) -> None:
    """An LMDB of raw 28 × 28 records."""
    chance = np.random.RandomState(0)
    with lmdb.open(path, map_size=1 << 27) as environment, environment.begin(write=True) as transaction:
        for number in range(4096):
            pixels = chance.randint(0, 256, (1, 28, 28)).astype(np.uint8)
            transaction.put(b"%08d" % number, array_to_datum(pixels, number % 10).SerializeToString())


SUBJECTS = {
    "lenet": Subject(
        batch=64,
        steps_per_turn=40,
        recipe=Recipe(scale=0.00390625),
        schedule=Schedule(0.01, 0.9, 0.0005, decays_biases=True, factor=lambda step: (1 + 0.0001 * step) ** -0.75),
        write=write_noise,
    ),
    "alexnet": Subject(
        batch=16,
        steps_per_turn=5,
        recipe=Recipe(crop_size=227, mirror=True, means=MEANS),
        schedule=Schedule(0.01, 0.9, 0.0005, decays_biases=False, factor=lambda step: 0.1 ** (step // 100000)),
        write=lambda path: write_database(path, 256, encoded=True),
    ),
    "googlenet": Subject(
        batch=8,
        steps_per_turn=3,
        recipe=Recipe(crop_size=224, mirror=True, means=MEANS),
        schedule=Schedule(0.01, 0.9, 0.0002, decays_biases=False, factor=lambda step: (1 - step / 2_400_000) ** 0.5),
        write=lambda path: write_database(path, 256, encoded=True),
    ),
}


def solver_on(name: str, path: str, batch: int) -> Solver:
    return Solver(param_on(name, path, batch))


def param_on(name: str, path: str, batch: int) -> caffe_pb2.SolverParameter:
    """The model's own solver and net, reading from `path`, without tests, display and snapshots."""
    net = read_net(MODELS / name / "train_val.prototxt").net
    for layer in net.layer:
        if layer.type == "Data":
            layer.data_param.source, layer.data_param.batch_size = path, batch
            if layer.transform_param.HasField("mean_file"):
                layer.transform_param.ClearField("mean_file")
                layer.transform_param.mean_value.extend(MEANS)
    param = read_solver(MODELS / name / "solver.prototxt")
    for field in ("net", "test_iter", "test_interval", "display", "snapshot"):
        param.ClearField(field)
    param.net_param.CopyFrom(net)
    param.random_seed = 1
    return param


def seconds_per_step(step: Callable[[int], object], num_steps: int, num_uncounted: int = UNCOUNTED_STEPS) -> float:
    step(num_uncounted)
    begin = time.perf_counter()
    step(num_steps)
    return (time.perf_counter() - begin) / num_steps


def loss_difference(ours: Solver, theirs: TorchLoop) -> float:
    """The largest difference of the first losses, where neither draws at random: the two loops are the same."""
    losses: list[float] = []

    def keep(event: events.Event) -> None:
        if isinstance(event, events.IterationDone):
            losses.append(float(event.loss))

    ours.listeners.append(keep)
    ours.step(5)
    ours.listeners.remove(keep)
    return max(abs(mine - float(other)) for mine, other in zip(losses, theirs.step(5), strict=True))


def torch_loops(name: str, path: str) -> dict[int, TorchLoop]:
    """By number of loaders. Each has its own copy of the database: one process must not open an LMDB twice."""
    subject, loops = SUBJECTS[name], {}
    for num_loaders in NUM_LOADERS:
        copy = shutil.copytree(path, f"{path}-{num_loaders}")
        images = LmdbImages(copy, subject.recipe)
        loops[num_loaders] = TorchLoop(build(name), images, subject.schedule, subject.batch, num_loaders)
    return loops


def measure(name: str, folder: str, num_turns: int) -> Result:
    subject, path = SUBJECTS[name], f"{folder}/{name}"
    subject.write(path)
    theirs = torch_loops(name, path)  # first: their processes are forked, which our threads should not see
    ours = solver_on(name, path, subject.batch)
    for loop in theirs.values():
        copy_weights(ours.net, loop.net)
    difference = None if subject.recipe.crop_size else loss_difference(ours, theirs[NUM_LOADERS[0]])
    steps: list[Callable[[int], object]] = [ours.step, *(loop.step for loop in theirs.values())]
    turns = []
    for turn in range(num_turns + 1):
        order = range(len(steps)) if turn % 2 else reversed(range(len(steps)))
        taken = {which: seconds_per_step(steps[which], subject.steps_per_turn) for which in order}
        turns.append([taken[which] for which in range(len(steps))])
    times = np.array(turns[1:])  # the first turn warms up
    ratios = times[:, :1] / times[:, 1:]
    hardest = int(np.argmax(np.median(ratios, axis=0)))
    return Result(
        net=name,
        batch=subject.batch,
        ours_ms=float(np.median(times[:, 0])) * 1e3,
        torch_ms=float(np.median(times[:, 1 + hardest])) * 1e3,
        num_loaders=NUM_LOADERS[hardest],
        ratio=float(np.median(ratios[:, hardest])),
        lowest_ratio=float(ratios[:, hardest].min()),
        highest_ratio=float(ratios[:, hardest].max()),
        limit=LIMIT,
        loss_difference=difference,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default="lenet,alexnet", help=f"of {', '.join(SUBJECTS)}")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} thread(s), medians of {options.turns} turns")
    print(f"{'net':10}{'batch':>6}{'ours':>10}{'PyTorch':>10}{'loaders':>9}{'ratio':>8}{'from - to':>20}{'limit':>8}")
    results = []
    for name in options.nets.split(","):
        with tempfile.TemporaryDirectory(prefix="bench-solver-") as folder:
            result = measure(name, folder, options.turns)
        results.append(result)
        losses = "" if result.loss_difference is None else f"  first losses differ by {result.loss_difference:.1e}"
        spread = f"({result.lowest_ratio:.3f} - {result.highest_ratio:.3f})"
        print(
            f"{name:10}{result.batch:>6}{result.ours_ms:>8.1f}ms{result.torch_ms:>8.1f}ms{result.num_loaders:>9}"
            f"{result.ratio:>8.3f}{spread:>20}{result.limit:>8.3f}{losses}"
            f"{'' if result.holds else '   <-- over the limit'}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 0 if all(result.holds for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
