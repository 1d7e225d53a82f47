"""Several workers on this host: `poseidon train` beside PyTorch's DistributedDataParallel over gloo, real training.

    python -m bench.local [--nets lenet,alexnet] [--workers 2,4] [--turns 5] [--scheme auto] [--pattern gpi]

Both read the same database (`bench/solver.py` says of what), each worker its own part, with the same batch per worker
and an equal share of the cores. Ours is what `poseidon train --workers P` runs, plan and all; DDP's loop is
hand-written, with 0 or 1 loader processes per worker, whichever is faster. All processes live all the time and take
turns: those of one contender run, the others sleep. A turn begins with steps that are not counted, until all batches
made ahead are used up. Its figure is the slowest worker's time per step.

The ratio is the median over turns of DDP's time / ours, against the faster of DDP's two; the limit is 1.0. Memory is
the peak of the proportional set size of a worker with its loaders, the largest of all workers, sampled in a first turn
whose time is not counted; the limit is DDP's + 5 %.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Subset

from bench.solver import SUBJECTS, UNCOUNTED_STEPS, param_on, seconds_per_step
from bench.torch_loop import LmdbImages, TorchLoop
from bench.torch_nets import build
from poseidon.plan import PATTERNS, PlanRequest, parse_scheme
from poseidon.run.distribute import DistributeOptions
from poseidon.run.launcher import free_port
from poseidon.run.planning import Links
from poseidon.run.rendezvous import Place
from poseidon.run.worker import Face, WorkerOptions, train_worker
from poseidon.solver import NetOptions, Solver

ROOT = Path(__file__).resolve().parent.parent
CONTENDERS = ("ours", "ddp-0", "ddp-1")
SPEED_LIMIT, MEMORY_LIMIT = 1.0, 1.05
SAMPLE_S = 0.05

Step = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Result:
    net: str
    workers: int
    ours_ms: float
    ddp_ms: float
    num_loaders: int
    ratio: float
    lowest_ratio: float
    highest_ratio: float
    ours_mb: float
    ddp_mb: float

    @property
    def holds(self) -> bool:
        return self.ratio >= SPEED_LIMIT and self.ours_mb <= self.ddp_mb * MEMORY_LIMIT


# -- one worker -------------------------------------------------------------------------------------------------------
def serve(step: Step, options: argparse.Namespace) -> None:
    """Answers every line on standard input with the seconds per step of a turn."""
    num_steps = options.steps or SUBJECTS[options.nets].steps_per_turn
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        print(json.dumps(seconds_per_step(step, num_steps, options.uncounted)), flush=True)


def work_ours(options: argparse.Namespace, rank: int, size: int, port: int) -> None:
    def train(solver: Solver, _resume: object) -> None:
        def step(number: int) -> None:
            solver.step(number)
            solver.updates.drain()

        serve(step, options)

    def show(lines: Sequence[str]) -> None:
        print("\n".join(lines), file=sys.stderr, flush=True)

    param = param_on(options.nets, options.database, SUBJECTS[options.nets].batch)
    scheme = None if options.scheme == "auto" else parse_scheme(options.scheme)
    worker_options = WorkerOptions(
        NetOptions(), PlanRequest(scheme=scheme, pattern=options.pattern), DistributeOptions(), Links()
    )
    place = Place(rank, size, rank, size, "127.0.0.1", port)
    face = Face((), show if options.show_plan else lambda lines: None, train, lambda problem: print(problem))
    train_worker(param, place, worker_options, face)


def work_ddp(options: argparse.Namespace, rank: int, size: int, port: int) -> None:
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // size))
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    subject = SUBJECTS[options.nets]
    images = LmdbImages(options.database, subject.recipe)
    own: Any = Subset(images, range(rank, len(images), size))
    torch.manual_seed(1)
    net = DistributedDataParallel(build(options.nets))
    loop = TorchLoop(net, own, subject.schedule, subject.batch, int(options.worker.rpartition("-")[2]))
    serve(loop.step, options)
    dist.destroy_process_group()


# -- all workers ------------------------------------------------------------------------------------------------------
class Crew:
    """The processes of one contender."""

    def __init__(self, contender: str, options: argparse.Namespace, net: str, size: int, database: str) -> None:
        port = free_port()
        command = [
            sys.executable,
            "-m",
            "bench.local",
            "--worker",
            contender,
            "--nets",
            net,
            "--scheme",
            options.scheme,
            "--pattern",
            options.pattern,
        ]
        command += ["--database", database, "--uncounted", str(options.uncounted)]
        command += ["--steps", str(options.steps)] if options.steps else []
        command += ["--show-plan"] if options.show_plan else []
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TORCH_CPP_LOG_LEVEL": "ERROR"}
        environment.pop("OMP_NUM_THREADS", None)
        self.processes = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**environment, "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_PORT": str(port)},
            )
            for rank in range(size)
        ]
        self._answers()

    def turn(self) -> float:
        """The slowest worker's seconds per step."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return max(self._answers())

    def _answers(self) -> list[Any]:
        found = []
        for process in self.processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"bench.local: a worker ended with exit code {process.wait()}")
            found.append(json.loads(line))
        return found

    def peak_mb(self) -> float:
        """Of the worker that has most, over a turn that is not timed."""
        is_over = threading.Event()
        peaks = [0.0] * len(self.processes)

        def sample() -> None:
            while not is_over.wait(SAMPLE_S):
                for place, process in enumerate(self.processes):
                    peaks[place] = max(peaks[place], sum(map(pss_mb, with_children(process.pid))))

        watch = threading.Thread(target=sample)
        watch.start()
        self.turn()
        is_over.set()
        watch.join()
        return max(peaks)

    def close(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def with_children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *map(int, children)]
    return [pid]


def pss_mb(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1e3
    return 0.0


@contextlib.contextmanager
def crews_of(options: argparse.Namespace, net: str, size: int, database: str) -> Iterator[dict[str, Crew]]:
    crews: dict[str, Crew] = {}
    try:
        for contender in options.contenders.split(","):
            crews[contender] = Crew(contender, options, net, size, database)
        yield crews
    finally:
        for crew in crews.values():
            crew.close()


def measure(options: argparse.Namespace, net: str, size: int, folder: str) -> Result:
    database = f"{folder}/{net}"
    if not Path(database).exists():
        SUBJECTS[net].write(database)
    with crews_of(options, net, size, database) as crews:
        peaks = {contender: crew.peak_mb() for contender, crew in crews.items()}
        print(f"  {net} {size}: {peaks} MB", file=sys.stderr, flush=True)
        turns: list[dict[str, float]] = []
        for turn in range(options.turns):
            order = list(crews) if turn % 2 else list(reversed(crews))
            taken = {contender: crews[contender].turn() for contender in order}
            turns.append(taken)
            print(f"  {net} {size}: {taken}", file=sys.stderr, flush=True)
    medians = {contender: statistics.median(turn[contender] for turn in turns) for contender in crews}
    best = min((contender for contender in crews if contender != "ours"), key=medians.__getitem__)
    ratios = [turn[best] / turn["ours"] for turn in turns]
    return Result(
        net=net,
        workers=size,
        ours_ms=medians["ours"] * 1e3,
        ddp_ms=medians[best] * 1e3,
        num_loaders=int(best.rpartition("-")[2]),
        ratio=statistics.median(ratios),
        lowest_ratio=min(ratios),
        highest_ratio=max(ratios),
        ours_mb=peaks["ours"],
        ddp_mb=peaks[best],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default="lenet,alexnet")
    parser.add_argument("--workers", default="2,4")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, help="counted steps of a turn")
    parser.add_argument("--uncounted", type=int, default=UNCOUNTED_STEPS, help="steps of a turn before those")
    parser.add_argument("--scheme", default="auto", help="ours by force")
    parser.add_argument("--pattern", default="collective", choices=PATTERNS, help="how ours communicates")
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--show-plan", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--database", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        place = [int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")]
        (work_ours if options.worker == "ours" else work_ddp)(options, *place)
        return 0
    print(f"{'net':9}{'workers':>8}{'ours':>10}{'DDP':>10}{'loaders':>9}{'ratio':>8}{'from - to':>18}{'memory':>18}")
    results = []
    with tempfile.TemporaryDirectory(prefix="bench-local-") as folder:
        for net in options.nets.split(","):
            for size in map(int, options.workers.split(",")):
                result = measure(options, net, size, folder)
                results.append(result)
                spread = f"({result.lowest_ratio:.3f} - {result.highest_ratio:.3f})"
                print(
                    f"{net:9}{size:>8}{result.ours_ms:>8.1f}ms{result.ddp_ms:>8.1f}ms{result.num_loaders:>9}"
                    f"{result.ratio:>8.3f}{spread:>18}{result.ours_mb:>8.0f}/{result.ddp_mb:.0f} MB"
                    f"{'' if result.holds else '   <-- over the limit'}",
                    flush=True,
                )
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 0 if all(result.holds for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
