"""Forward + backward of our nets beside the same nets hand-written in PyTorch: time and peak memory, as ratios.

    python -m bench.net [--nets lenet,alexnet] [--repeats 15] [--threads 1] [--json OUT]

Both contenders run in one process, taking turns, with the same weights and inputs; figures are medians. Peak memory is
taken in processes of their own, in two ways: what torch's allocator hands out (parameters, and the highest sum of live
tensors during a pass: exact, the same in every run), and the resident size of the whole process. The limit in each row
is the largest ratio ours / PyTorch that is acceptable: 1/0.97 of PyTorch's own time, or less where BVLC Caffe or a
better kernel is known to be faster.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.torch_nets import build
from models.generate import bench_text
from poseidon.net import Net
from poseidon.spec import parse_net


@dataclass(frozen=True, slots=True)
class Subject:
    """A net to be measured; `time_limit` bounds ours / PyTorch."""

    batch: int
    time_limit: float


SUBJECTS = {
    "lenet": Subject(batch=64, time_limit=0.90),
    "cifar10_quick": Subject(batch=100, time_limit=1 / 0.97),
    "alexnet": Subject(batch=16, time_limit=1 / 1.28),
    "googlenet": Subject(batch=8, time_limit=1 / 0.97),
    "resnet50": Subject(batch=4, time_limit=1 / 0.97),
}
MEMORY_LIMIT = 1.05


@dataclass(frozen=True, slots=True)
class Memory:
    """Peaks of one contender."""

    tensors_mb: float
    process_mb: float


@dataclass(frozen=True, slots=True)
class Result:
    net: str
    batch: int
    ours_ms: float
    torch_ms: float
    time_ratio: float
    time_spread: tuple[float, float]
    time_limit: float
    ours_memory: Memory
    torch_memory: Memory
    largest_loss_difference: float

    @property
    def tensor_ratio(self) -> float:
        return self.ours_memory.tensors_mb / self.torch_memory.tensors_mb

    @property
    def process_ratio(self) -> float:
        return self.ours_memory.process_mb / self.torch_memory.process_mb

    @property
    def holds(self) -> bool:
        return self.time_ratio <= self.time_limit and max(self.tensor_ratio, self.process_ratio) <= MEMORY_LIMIT


def our_pass(name: str, batch: int) -> tuple[torch.nn.Module, Callable[[], float]]:
    net = Net(parse_net(bench_text(name, batch)), phase="TRAIN", seed=1)
    inputs = sample_inputs(net)

    def run() -> float:
        net.zero_grad()
        outputs = net(inputs)
        assert outputs.loss is not None
        outputs.loss.backward()
        return outputs.loss.item()

    return net, run


def torch_pass(name: str, batch: int) -> tuple[torch.nn.Module, Callable[[], float]]:
    net = build(name)
    shape = tuple(parse_net(bench_text(name, batch)).net.layer[0].input_param.shape[0].dim)
    inputs = sample(shape)
    labels = torch.zeros(batch, dtype=torch.long)

    def run() -> float:
        net.zero_grad()
        loss = net(inputs, labels)
        loss.backward()
        return loss.item()

    return net, run


def sample(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def sample_inputs(net: Net) -> dict[str, torch.Tensor]:
    return {
        name: sample(net.blob_shapes[name]) if name == "data" else torch.zeros(net.blob_shapes[name])
        for name in net.inputs
    }


def copy_weights(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    """Starts both from the same values; parameters come in the same order."""
    mine = [parameter for parameter in ours.parameters() if parameter.requires_grad]
    with torch.no_grad():
        for source, target in zip(mine, theirs.parameters(), strict=True):
            target.copy_(source)


def without_dropout(ours: torch.nn.Module, theirs: torch.nn.Module, run: Callable[[], float]) -> float:
    """Our loss, for comparison with theirs, where both draw nothing at random."""
    ratios = {}
    for module in ours.modules():
        if getattr(module, "type_name", "") == "Dropout":
            ratios[module] = module.spec.dropout_param.dropout_ratio
            module.spec.dropout_param.dropout_ratio = 1e-7
    loss = run()
    for module, ratio in ratios.items():
        module.spec.dropout_param.dropout_ratio = ratio
    return loss


def measure(name: str, repeats: int) -> Result:
    subject = SUBJECTS[name]
    ours, run_ours = our_pass(name, subject.batch)
    theirs, run_theirs = torch_pass(name, subject.batch)
    copy_weights(ours, theirs)
    for module in theirs.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    difference = abs(without_dropout(ours, theirs, run_ours) - run_theirs())
    for module in theirs.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    times: dict[str, list[float]] = {"ours": [], "torch": []}
    contenders = [("ours", run_ours), ("torch", run_theirs)]
    for round_number in range(repeats + 2):
        for label, run in contenders if round_number % 2 else reversed(contenders):
            begin = time.perf_counter()
            run()
            if round_number >= 2:
                times[label].append(time.perf_counter() - begin)
    mine, other = (statistics.median(times[label]) * 1e3 for label in ("ours", "torch"))
    ratios = [a / b for a, b in zip(times["ours"], times["torch"], strict=True)]
    del ours, theirs, run_ours, run_theirs, contenders
    gc.collect()
    with ThreadPoolExecutor() as pool:  # peaks do not depend on what else runs
        ours_memory, torch_memory = pool.map(peak_memory, ("ours", "torch"), (name, name))
    return Result(
        net=name,
        batch=subject.batch,
        ours_ms=mine,
        torch_ms=other,
        time_ratio=statistics.median(ratios),
        time_spread=(min(ratios), max(ratios)),
        time_limit=subject.time_limit,
        ours_memory=ours_memory,
        torch_memory=torch_memory,
        largest_loss_difference=difference,
    )


def peak_memory(label: str, name: str) -> Memory:
    """The peaks of one contender, from a process of its own."""
    command = [sys.executable, "-m", "bench.net", "--peak", f"{label}:{name}"]
    folder = Path(__file__).resolve().parent.parent
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    tensors, process = run.stdout.split()[-2:]
    return Memory(float(tensors), float(process))


def print_peak(which: str) -> None:
    label, name = which.split(":")
    torch.set_num_threads(1)
    net, run = (our_pass if label == "ours" else torch_pass)(name, SUBJECTS[name].batch)
    for _ in range(3):
        run()
    process_mb = peak_resident_mb()
    net.zero_grad()
    parameters_mb = sum(parameter.nbytes for parameter in net.parameters()) / 2**20
    print(parameters_mb + live_tensors_mb(run), process_mb)


def peak_resident_mb() -> float:
    """The highest resident size of this process. (getrusage would count what the parent had at the fork.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def live_tensors_mb(run: Callable[[], float]) -> float:
    """The highest sum of live tensors during a pass, from the profiler's record of every allocation."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        run()
    with tempfile.TemporaryDirectory() as folder:
        record.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    allocations = sorted((event for event in events if event.get("name") == "[memory]"), key=lambda event: event["ts"])
    return max(accumulate(event["args"]["Bytes"] for event in allocations)) / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default=",".join(SUBJECTS))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        print_peak(options.peak)
        return 0
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} thread(s), medians of {options.repeats} turns")
    heads = f"{'net':14}{'batch':>6}{'ours':>10}{'PyTorch':>10}{'ratio':>8}{'limit':>8}"
    print(f"{heads}{'tensors':>9}{'process':>9}{'limit':>7}  loss differs by")
    results = []
    for name in options.nets.split(","):
        result = measure(name, options.repeats)
        results.append(result)
        print(
            f"{name:14}{result.batch:>6}{result.ours_ms:>8.1f}ms{result.torch_ms:>8.1f}ms{result.time_ratio:>8.3f}"
            f"{result.time_limit:>8.3f}{result.tensor_ratio:>9.3f}{result.process_ratio:>9.3f}{MEMORY_LIMIT:>7.2f}  "
            f"{result.largest_loss_difference:.1e}{'' if result.holds else '   <-- over a limit'}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 0 if all(result.holds for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
