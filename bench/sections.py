"""The sections of the suite: each turns what one of the benchmarks measures into ratios.

`quick` asks for few subjects and turns: all sections together are meant to take ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench import bytes as wire_bytes
from bench import collectives, data, face, lab, local, net, parallel, solver, watching
from bench.ratio import Ratio, of_turns, single
from poseidon.plan import PATTERNS

Measure = Callable[[bool], list[Ratio]]


@dataclass(frozen=True, slots=True)
class Section:
    """`needs_root`: it emulates hosts by network namespaces. `missing`: what it lacks to be run, empty if nothing."""

    measure: Measure
    about: str
    needs_root: bool = False
    missing: Callable[[], str] = lambda: ""


def options(**values: Any) -> argparse.Namespace:
    return argparse.Namespace(**values)


# -- one device -------------------------------------------------------------------------------------------------------
def single_device(quick: bool) -> list[Ratio]:
    torch.set_num_threads(1)
    ratios = []
    for name in ("lenet", "googlenet", "resnet50") if quick else net.SUBJECTS:
        found = net.measure(name, 3 if quick else 15)
        what = f"{name}, batch {found.batch}"
        low, high = found.time_spread
        ratios.append(Ratio(f"{what}: time / PyTorch's", found.time_ratio, low, high, found.time_limit))
        ratios.append(single(f"{what}: peak of tensors / PyTorch's", found.tensor_ratio, net.MEMORY_LIMIT))
        ratios.append(single(f"{what}: peak of the process / PyTorch's", found.process_ratio, net.MEMORY_LIMIT))
    return ratios


def caffe_face(quick: bool) -> list[Ratio]:
    torch.set_num_threads(1)
    ratios = []
    for subject in face.subjects():
        _, _, ratio = face.measure(subject, 60 if quick else 300)
        ratios.append(single(f"LeNet {subject.label}, batch {subject.batch}: time / torch's", ratio, subject.limit))
    return ratios


def data_pipeline(quick: bool) -> list[Ratio]:
    num_cores = torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="bench-data-") as folder:
        found = data.measure_images(folder, 128 if quick else 512, 3 if quick else 7)
        torch.set_num_threads(num_cores)
        ratios = [single(result.what.strip(), result.ratio, is_gain=True) for result in found]
        for kind, what in (("jpeg", "JPEG"),) if quick else (("jpeg", "JPEG"), ("raw", "raw bytes")):
            step = data.measure_steps(f"{folder}/{kind}", what, 2 if quick else 7, 3 if quick else 8)
            ratios.append(single(step.what, step.ratio, 1.05))
    return ratios


def whole_steps(quick: bool) -> list[Ratio]:
    ratios = []
    for name in ("lenet",) if quick else solver.SUBJECTS:
        with tempfile.TemporaryDirectory(prefix="bench-solver-") as folder:
            found = solver.measure(name, folder, 3 if quick else 9)
        what = f"{name}, batch {found.batch}: step / PyTorch's"
        ratios.append(Ratio(what, found.ratio, found.lowest_ratio, found.highest_ratio, found.limit))
    return ratios


def watching_a_run(quick: bool) -> list[Ratio]:
    torch.set_num_threads(1)
    asked = options(turns=12 if quick else 30, steps=100, threads=1)
    with tempfile.TemporaryDirectory(prefix="bench-watching-") as folder:
        return [
            Ratio(
                f"{found.net}, {found.watched}: step / unwatched",
                found.ratio,
                found.lowest_ratio,
                found.highest_ratio,
                found.limit,
            )
            for found in watching.measure("lenet", asked, folder, ("all",) if quick else watching.WATCHED)
        ]


# -- several workers --------------------------------------------------------------------------------------------------
def one_host(quick: bool) -> list[Ratio]:
    asked = options(
        turns=3 if quick else 5,
        steps=None,
        uncounted=local.UNCOUNTED_STEPS,
        scheme="auto",
        pattern=PATTERNS[0],
        contenders=",".join(local.CONTENDERS),
        show_plan=False,
    )
    ratios = []
    with tempfile.TemporaryDirectory(prefix="bench-local-") as folder:
        for name, size in [("lenet", 2)] if quick else [("lenet", 2), ("lenet", 4), ("alexnet", 2)]:
            found = local.measure(asked, name, size, folder)
            what = f"{name}, {size} workers"
            spread = (found.lowest_ratio, found.highest_ratio)
            ratios.append(Ratio(f"{what}: DDP's step / ours", found.ratio, *spread, local.SPEED_LIMIT, is_gain=True))
            memory = found.ours_mb / found.ddp_mb
            ratios.append(single(f"{what}: memory / DDP's", memory, local.MEMORY_LIMIT))
    return ratios


def exchanges(quick: bool) -> list[Ratio]:
    """Ours beside c10d's, and ours beside the wire from 4 MB on, where latency no longer rules."""
    ratios = []
    for num_hosts in (4,) if quick else (2, 4, 8, 16):
        kib = "64,1024,16384" if quick else "64,256,1024,4096,16384,65536"
        found = collectives.run_in_lab(num_hosts, options(rate="1gbit", kib=kib, repeats=3 if quick else 7))
        for ours in found:
            if ours.name not in ("ours", "reduce + gather shards"):
                continue
            (other,) = [
                r for r in found if r is not ours and (r.operation, r.num_bytes) == (ours.operation, ours.num_bytes)
            ]
            what = f"{ours.operation}, {ours.num_bytes >> 10} KiB, {num_hosts} hosts"
            ratios.append(single(f"{what}: c10d's time / ours", other.median_s / ours.median_s, is_gain=True))
            if ours.num_bytes >= 4 << 20:
                shares = sorted((ours.limit_s / ours.median_s, ours.limit_s / ours.best_s))
                ratios.append(Ratio(f"{what}: part of the wire", shares[0], *shares, is_gain=True))
    return ratios


def bytes_on_wire(quick: bool) -> list[Ratio]:
    asked = options(rate="1gbit", iterations=3 if quick else 6)
    return [
        single(f"{found.scheme}, {found.wire}, nodes of {nodes}: bytes / planned", found.ratio, wire_bytes.MOST)
        for nodes in (("1,1,1",) if quick else ("1,1,1,1", "2,2", "2,1,1"))
        for found in wire_bytes.run_in_lab(nodes, asked)
    ]


def lab_training(quick: bool) -> list[Ratio]:
    words = ["--rounds", "1", "--iterations", "3", "--contenders", "auto,ddp"] if quick else ["--rounds", "3"]
    ratios = []
    for subject in ("alexnet",) if quick else lab.SUBJECTS:
        found = lab.compare(subject, lab.options_of(words))
        what = f"{subject}, {found['hosts']} hosts of {found['rate']}"
        goal, turns = lab.GOALS[subject], found["turns"]
        ratios.append(of_turns(f"{what}: DDP's iteration / ours", turns["times_ddp"], goal.times_ddp, is_gain=True))
        ratios.append(of_turns(f"{what}: the limit / ours", turns["of_limit"], goal.of_limit, is_gain=True))
        ratios.append(of_turns(f"{what}: ours / planned", turns["of_predicted"]))
    return ratios


def any_module(quick: bool) -> list[Ratio]:
    words = ["--contenders", "ours,ddp-sparse" if quick else ",".join(parallel.CONTENDERS)]
    words += ["--rounds", "1", "--iterations", "4"] if quick else ["--rounds", "3"]
    ratios = []
    for subject in ("embedding",) if quick else parallel.SUBJECTS:
        found = parallel.compare(subject, parallel.options_of(words))
        what = f"{subject}, {found['hosts']} hosts of {found['rate']}: best lossless DDP's step / ours"
        ratios.append(of_turns(what, found["turns"], is_gain=True))
    return ratios


def unequal_machines(quick: bool) -> list[Ratio]:
    from bench import staleness

    asked = staleness.options_of(["--iterations", "16", "--runs", "1"] if quick else [])
    ratios = []
    for part in ("throughput",) if quick else staleness.PARTS:
        least, most = staleness.LIMITS[part]
        ratio = staleness.PARTS[part](asked)["ratio"]
        ratios.append(single(f"{part} (bench/staleness.py)", ratio, least or most, is_gain=least is not None))
    return ratios


DATA = Path(__file__).resolve().parent.parent / "data"


def without(dataset: str) -> str:
    """What to do if its databases are not here."""
    has_all = all((DATA / f"{dataset}_{part}_lmdb").exists() for part in ("train", "test"))
    return "" if has_all else f"its data is not here: run `poseidon data {dataset} data`"


RECOVERY_S = 10.0  # what recovery is divided by, to be a ratio like all others


def lost_workers(quick: bool) -> list[Ratio]:
    from bench import recovery

    ratios = []
    for fault in ("kill -9",) if quick else recovery.LENET_FAULTS:
        turns = []
        for seed in range(1 if quick else 3):
            with tempfile.TemporaryDirectory(prefix="recovery-", ignore_cleanup_errors=True) as folder:
                turns.append(recovery.disturb_lenet(fault, seed, Path(folder), DATA)["training"] / RECOVERY_S)
        ratios.append(of_turns(f"LeNet on 4 hosts, {fault}: until it trains again / {RECOVERY_S:.0f} s", turns))
    return ratios


def caffe_binary(binary: str, quick: bool) -> list[Ratio]:
    from bench.caffe_binary import measure

    return [measure(binary, name, 2 if quick else 5) for name in (("lenet",) if quick else ("lenet", "alexnet"))]


SECTIONS = {
    "device": Section(single_device, "one device, beside hand-written PyTorch: time and memory"),
    "face": Section(caffe_face, "a loop of pycaffe's net.forward(), beside the same torch modules"),
    "data": Section(data_pipeline, "reading data, beside decoding alone and beside a batch in memory"),
    "steps": Section(whole_steps, "a whole solver step, beside a loop in PyTorch"),
    "watching": Section(watching_a_run, "a step that is recorded, traced and displayed, beside one that is not"),
    "local": Section(one_host, "workers of one host, beside DistributedDataParallel"),
    "collectives": Section(exchanges, "our exchanges on emulated hosts, beside c10d's and the wire", needs_root=True),
    "bytes": Section(bytes_on_wire, "bytes on the wire, beside the plan's", needs_root=True),
    "lab": Section(lab_training, "training on emulated hosts, beside DDP and the limit", needs_root=True),
    "parallel": Section(any_module, "any PyTorch module on emulated hosts, beside DDP", needs_root=True),
    "staleness": Section(
        unequal_machines,
        "unequal machines: staleness and balance, beside neither",
        needs_root=True,
        missing=partial(without, "mnist"),
    ),
    "recovery": Section(
        lost_workers,
        "a worker is lost: until the job trains again",
        needs_root=True,
        missing=partial(without, "digits"),
    ),
}


def sections_with(binary: str | None) -> dict[str, Section]:
    """All, with Caffe's own if its program is given."""
    if binary is None:
        return SECTIONS
    return {**SECTIONS, "caffe": Section(partial(caffe_binary, binary), f"one device, beside {Path(binary).name}")}
