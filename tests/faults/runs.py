"""Runs: a job is disturbed, and compared with one that was not.

The oracle is the undisturbed run: its last snapshot, weights and histories, bit for bit. Disturbed runs begin with its
first snapshot, because that brings its plan: how sums are taken decides their last bits. Where a fault takes a host
away for good there are fewer workers and another plan: then the oracle is a job of so many workers from the snapshot
with which the disturbed one went on, equal up to the order of sums.
"""

from __future__ import annotations

import random
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from poseidon.spec import caffe_pb2
from tests.faults.case import MAX_ITER, blobs, copy_base, files_of, history, write_case
from tests.faults.scenes import FAULTS, SCHEMES, Fault, Scene
from tests.faults.ssh_lab import ROOT, Running, SshLab

NUM_SEEDS = 20
MAX_RESTARTS = 3
# What the launcher says, in the order it says it, when a job starts again.
PHASES = {
    "noticed": ("error: ",),
    "taken down": ("restart 1 of",),
    "joined and planned": ("cluster   ", "worker"),
    "training": ("Iteration ", "loss = "),
}


@dataclass(frozen=True, slots=True)
class Case:
    fault: str
    seed: int
    num_hosts: int = 0  # 0: as the seed says

    @property
    def scheme(self) -> str:
        return SCHEMES[(self.seed + list(FAULTS).index(self.fault)) % len(SCHEMES)]

    @property
    def hosts(self) -> int:
        return self.num_hosts or (4, 2, 3, 2, 2)[(self.seed + self.seed // len(SCHEMES)) % 5]

    def __str__(self) -> str:
        return f"{self.fault}, {self.scheme}, {self.hosts} hosts, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`problem` is empty if all is as it must be; `seconds` after the harm was done, by phase."""

    case: Case
    problem: str
    seconds: dict[str, float] = field(default_factory=dict)
    text: str = ""


class References:
    """Undisturbed runs, each made once. `root` may outlive this process."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def whole(self, scheme: str, num_hosts: int) -> Path:
        """From the beginning to the end."""
        folder = self._root / f"{scheme}-{num_hosts}"
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a run that did not come to its end
            self._run(folder, scheme, num_hosts)
        return folder

    def continued(self, scheme: str, num_hosts: int, begun: Path, iteration: int) -> Path:
        """From a snapshot, of however many workers, to the end."""
        folder = self._root / f"{scheme}-{num_hosts}-of-{begun.name}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for path in files_of(begun, iteration):
            shutil.copy(path, folder)
        self._run(folder, scheme, num_hosts, "--snapshot=auto")
        return folder

    def _run(self, folder: Path, scheme: str, num_hosts: int, *words: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_case(folder)
        with SshLab(folder, num_hosts) as lab:
            # Alone there is no scheme.
            running = lab.train(*words, *((f"--scheme={scheme}",) if num_hosts > 1 else ()))
            assert running.wait() == 0, running.text
        (folder / "done").touch()


def disturb(case: Case, references: References, folder: Path) -> Outcome:
    """One run. `folder` is empty."""
    expected = references.whole(case.scheme, case.hosts)
    fault, chance = FAULTS[case.fault], random.Random(f"{case.fault} {case.seed}")
    write_case(folder)
    copy_base(expected, folder)
    with SshLab(folder, case.hosts, mounts=fault.prepare(folder, chance)) as lab:
        least = case.hosts - fault.loses_hosts
        words = ("--snapshot=auto", f"--max-restarts={MAX_RESTARTS}", f"--scheme={case.scheme}")
        site = {"PYTHONPATH": f"{folder}/site:{ROOT}"} if (folder / "site").exists() else {}
        running = lab.train(*words, f"--min-workers={least}", **site)
        scene = Scene(lab, running, folder, chance)
        problem = _problem_of(scene, fault)
        if not problem:
            fault.fetch(scene)
    seconds = {} if scene.struck_s is None or not fault.is_fatal else phases(running, scene.struck_s)
    problem = problem or compare(case, references, folder, running)
    return Outcome(case, problem, seconds, running.text)


def _problem_of(scene: Scene, fault: Fault) -> str:
    running = scene.running
    try:
        fault.act(scene)
        code = running.wait()
        scene.lab.wait_for_nothing(20)  # a host that is cut off ends by itself what runs there
    except AssertionError as problem:
        return str(problem)
    if code != 0:
        return f"exit code {code}:\n{running.text}"
    if fault.is_fatal != ("restart 1 of" in running.text):
        return f"{'no' if fault.is_fatal else 'a'} restart:\n{running.text}"
    return ""


def phases(running: Running, struck_s: float) -> dict[str, float]:
    """Seconds from the harm to each phase of recovery."""
    found, line = {}, next((n for n, at_s in enumerate(running.times) if at_s >= struck_s), len(running.times))
    for name, words in PHASES.items():
        line = next((n for n in range(line, len(running.lines)) if all(w in running.lines[n] for w in words)), -1)
        if line < 0:
            break
        found[name] = running.times[line] - struck_s
    return found


# -- comparing --------------------------------------------------------------------------------------------------------
def compare(case: Case, references: References, folder: Path, running: Running) -> str:
    """What differs from the undisturbed run; empty if nothing does."""
    fault = FAULTS[case.fault]
    if len(files_of(folder, MAX_ITER)) != 3:
        return "the last snapshot is not whole"
    if list(folder.glob("*.partial-*")):
        return "something was left of an unfinished snapshot"
    expected = references.whole(case.scheme, case.hosts)
    names = [{path.name for path in where.glob("snap_iter_*.solverstate")} for where in (folder, expected)]
    if names[0] != names[1] and not fault.loses_snapshots:
        return f"snapshots are lost: {sorted(names[1] - names[0])}"
    if fault.loses_hosts:
        begun = [int(found) for found in re.findall(r"Resuming from snap_iter_(\d+)\.", running.text)]
        continued = references.continued(case.scheme, case.hosts - fault.loses_hosts, folder, begun[-1])
        return _compare_values(folder, continued)
    if blobs(folder, MAX_ITER) != blobs(expected, MAX_ITER):
        return f"parameters differ:\n{running.text}"
    if history(folder, MAX_ITER) != history(expected, MAX_ITER):
        return f"histories differ:\n{running.text}"
    return ""


def _compare_values(folder: Path, expected: Path) -> str:
    found, wanted = (_values(where) for where in (folder, expected))
    largest = float(np.max(np.abs(found - wanted)))
    return "" if np.allclose(found, wanted, rtol=1e-4, atol=1e-5) else f"parameters differ by up to {largest:g}"


def _values(folder: Path) -> np.ndarray:
    model = caffe_pb2.NetParameter.FromString((folder / f"snap_iter_{MAX_ITER}.caffemodel").read_bytes())
    return np.concatenate([np.asarray(blob.data) for layer in model.layer for blob in layer.blobs])
