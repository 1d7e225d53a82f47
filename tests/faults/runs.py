"""Runs: a job is disturbed some times, and compared with one that was not.

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
from tests.faults.ssh_lab import ROOT, SshLab

NUM_FAULTS = 20  # of each kind
MAX_RESTARTS = 9
# What the launcher says, in the order it says it, when a job starts again.
PHASES = {
    "noticed": ("error: ",),
    "taken down": ("restart ", " of "),
    "joined": ("Initializing solver from parameters",),
    "training": ("Iteration ", "loss = "),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One run. The number decides the scheme, the number of hosts, and the dice."""

    fault: str
    number: int
    num_hosts: int = 0

    @property
    def scheme(self) -> str:
        return SCHEMES[(self.number + list(FAULTS).index(self.fault)) % len(SCHEMES)]

    @property
    def hosts(self) -> int:
        return self.num_hosts or FAULTS[self.fault].num_hosts or (2, 3, 2, 4, 2)[self.number % 5]

    def __str__(self) -> str:
        return f"{self.fault}, {self.scheme}, {self.hosts} hosts, run {self.number}"


def cases(fault: str) -> list[Case]:
    """As many runs as it takes for `NUM_FAULTS` faults."""
    return [Case(fault, number) for number in range(-(-NUM_FAULTS // FAULTS[fault].times))]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`problem` is empty if all is as it must be; `seconds` after each time harm was done, by phase."""

    case: Case
    problem: str
    seconds: list[dict[str, float]] = field(default_factory=list)
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


def disturb(case: Case, references: References, folder: Path, times: int | None = None) -> Outcome:
    """One run, disturbed as often as its fault says, or `times` times. `folder` is empty."""
    expected = references.whole(case.scheme, case.hosts)
    fault, chance = FAULTS[case.fault], random.Random(str(case))
    write_case(folder)
    copy_base(expected, folder)
    with SshLab(folder, case.hosts, mounts=fault.prepare(folder, chance)) as lab:
        words = ("--snapshot=auto", f"--max-restarts={MAX_RESTARTS}", f"--scheme={case.scheme}")
        site = {"PYTHONPATH": f"{folder}/site:{ROOT}"} if (folder / "site").exists() else {}
        running = lab.train(*words, f"--min-workers={1 if fault.loses_hosts else case.hosts}", **site)
        scene = Scene(lab, running, folder, chance)
        problem = _problem_of(scene, fault, times or fault.times)
        if not problem:
            fault.fetch(scene)
    seconds = phases(scene) if fault.is_fatal else [{} for _ in range(times or fault.times)]
    return Outcome(case, problem or compare(case, references, scene), seconds, running.text)


def _problem_of(scene: Scene, fault: Fault, times: int) -> str:
    running = scene.running
    try:
        for _ in range(times):
            fault.act(scene)
        code = running.wait()
        scene.lab.wait_for_nothing(20)  # a host that is cut off ends by itself what runs there
    except AssertionError as problem:
        return str(problem)
    if code != 0:
        return f"exit code {code}"
    num_restarts = running.text.count("from the newest good snapshot of this job")
    return "" if num_restarts == (times if fault.is_fatal else 0) else f"{num_restarts} restarts"


def phases(scene: Scene) -> list[dict[str, float]]:
    """Seconds from each time that harm was done to the phases of recovery from it."""
    lines, found = scene.running.lines, []
    ends = [strike.line for strike in scene.strikes[1:]] + [len(lines)]
    for strike, end in zip(scene.strikes, ends, strict=True):
        seconds, line = {}, strike.line
        for name, words in PHASES.items():
            line = next((n for n in range(line, end) if all(word in lines[n] for word in words)), end)
            if line < end:
                seconds[name] = scene.running.times[line] - strike.at_s
        found.append(seconds)
    return found


# -- comparing --------------------------------------------------------------------------------------------------------
def compare(case: Case, references: References, scene: Scene) -> str:
    """What differs from the undisturbed run; empty if nothing does."""
    fault, folder = FAULTS[case.fault], scene.folder
    if len(files_of(folder, MAX_ITER)) != 3:
        return "the last snapshot is not whole"
    if list(folder.glob("*.partial-*")):
        return "something was left of an unfinished snapshot"
    expected = references.whole(case.scheme, case.hosts)
    names = [{path.name for path in where.glob("snap_iter_*.solverstate")} for where in (folder, expected)]
    if names[0] != names[1] and not fault.loses_snapshots:
        return f"snapshots are lost: {sorted(names[1] - names[0])}"
    if fault.loses_hosts:
        begun = [int(found) for found in re.findall(r"Resuming from snap_iter_(\d+)\.", scene.running.text)]
        continued = references.continued(case.scheme, case.hosts - len(scene.cut), folder, begun[-1])
        return _compare_values(folder, continued)
    if blobs(folder, MAX_ITER) != blobs(expected, MAX_ITER):
        return "parameters differ"
    if history(folder, MAX_ITER) != history(expected, MAX_ITER):
        return "histories differ"
    return ""


def _compare_values(folder: Path, expected: Path) -> str:
    found, wanted = (_values(where) for where in (folder, expected))
    largest = float(np.max(np.abs(found - wanted)))
    return "" if np.allclose(found, wanted, rtol=1e-4, atol=1e-5) else f"parameters differ by up to {largest:g}"


def _values(folder: Path) -> np.ndarray:
    model = caffe_pb2.NetParameter.FromString((folder / f"snap_iter_{MAX_ITER}.caffemodel").read_bytes())
    return np.concatenate([np.asarray(blob.data) for layer in model.layer for blob in layer.blobs])
