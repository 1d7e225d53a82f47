"""Troubles that are no reason to stop: a full disk, a slow link, a clock that is off. And one that is to be explained:
a worker that keeps the others waiting."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.faults.case import MAX_ITER, blobs, copy_base, history, write_case
from tests.faults.ssh_lab import ROOT, SshLab

SHIFT = "import time as t; now = t.time; t.time = lambda: now() - 3600\n"


@pytest.fixture
def folder(tmp_path) -> Path:
    write_case(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    write_case(folder)
    with SshLab(folder, 2) as lab:
        running = lab.train("--scheme=server")
        assert running.wait() == 0, running.text
    return folder


def assert_same_end(folder: Path, undisturbed: Path) -> None:
    assert blobs(folder, MAX_ITER) == blobs(undisturbed, MAX_ITER)
    assert history(folder, MAX_ITER) == history(undisturbed, MAX_ITER)


@pytest.mark.full
def test_a_full_disk_is_reported_and_training_goes_on(folder):
    """Rank 0's snapshots go to a small disk, which is full for a while."""
    snaps = folder / "snaps"
    snaps.mkdir()
    solver = folder / "solver.prototxt"
    solver.write_text(solver.read_text().replace('"snap"', '"snaps/snap"').replace(f"iter: {MAX_ITER}", "iter: 100000"))
    with SshLab(folder, 2, mounts={0: [f"mount -t tmpfs -o size=256k none {snaps}"]}) as lab:
        running = lab.train()
        running.wait_for("Iteration 60 (")
        worker = lab.workers_on(0)[-1]
        inside = ["nsenter", f"--mount=/proc/{worker}/ns/mnt", "sh", "-c"]
        # Fills up: what can still be written fits no snapshot.
        subprocess.run([*inside, f"cat /dev/zero > {snaps}/filler"], check=False, stderr=subprocess.DEVNULL)
        failed = running.wait_for("failed, training goes on", "No space left on device")
        running.wait_for("Iteration ", "iter/s", after=failed)
        subprocess.run([*inside, f"rm -f {snaps}/filler {snaps}/*"], check=True)
        again = running.wait_for("Snapshotting solver state", after=len(running.lines))
        running.wait_for("Snapshotting solver state", after=again + 1)
        names = subprocess.run([*inside, f"ls {snaps}"], check=True, capture_output=True, text=True).stdout
        assert ".solverstate" in names
        (launcher,) = {int(line) for line in _launchers(lab)}
        os.kill(launcher, signal.SIGINT)
        assert running.wait() == 0, running.text


def _launchers(lab: SshLab) -> list[str]:
    status = lab.runtime(0) / "poseidon"
    return [path.stem.rpartition("-")[2] for path in status.glob("*.json") if b"is_launcher" in path.read_bytes()]


@pytest.mark.full
def test_a_slow_link_changes_nothing_but_the_pace(folder, undisturbed):
    copy_base(undisturbed, folder)
    with SshLab(folder, 2, rates=("1gbit", "1mbit")) as lab:
        running = lab.train("--scheme=server", "--snapshot=auto")
        assert running.wait() == 0, running.text
    assert_same_end(folder, undisturbed)


@pytest.mark.full
def test_a_clock_that_is_off_changes_nothing(folder, undisturbed):
    copy_base(undisturbed, folder)
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text("")
    (folder / "shift.py").write_text(SHIFT)
    mounts = {1: [f"mount --bind {folder}/shift.py {folder}/site/sitecustomize.py"]}
    with SshLab(folder, 2, mounts=mounts) as lab:
        running = lab.start(
            "train",
            "--solver=solver.prototxt",
            f"--hosts={lab.hosts()}",
            f"--ssh={lab.ssh}",
            "--scheme=server",
            "--snapshot=auto",
            PYTHONPATH=f"{folder}/site:{ROOT}",
        )
        assert running.wait() == 0, running.text
    assert_same_end(folder, undisturbed)


# Rank 1's compute thread stands still for a while; its other threads do not.
STAND_STILL = """
import sys, threading, time

def patch():
    while not hasattr(sys.modules.get("poseidon.solver.solver"), "Solver"):
        time.sleep(0.01)
    solver = sys.modules["poseidon.solver.solver"].Solver
    before = solver._clear_gradients
    def stand_still(self):
        if self.iter == 40:
            time.sleep(8)
        before(self)
    solver._clear_gradients = stand_still

threading.Thread(target=patch, daemon=True).start()
"""


@pytest.mark.full
def test_a_worker_that_keeps_others_waiting_is_explained(folder):
    """Rank 0 says who waits for whom, and writes down what all threads do."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text("")
    (folder / "still.py").write_text(STAND_STILL)
    mounts = {1: [f"mount --bind {folder}/still.py {folder}/site/sitecustomize.py"]}
    with SshLab(folder, 2, mounts=mounts) as lab:
        words = (f"--hosts={lab.hosts()}", f"--ssh={lab.ssh}", "--report-after=2")
        path = f"{folder}/site:{ROOT}"
        running = lab.start("train", "--solver=solver.prototxt", *words, PYTHONPATH=path)
        told = running.wait_for("an exchange has taken", "the stacks of all workers are in")
        running.wait_for("rank 0 (host ", "waits for ", "for rank 1", after=told)
        running.wait_for("rank 1 (host ", "computes or reads data", after=told)
        assert running.wait() == 0, running.text
    text = next(folder.glob("snap_stuck_*.txt")).read_text()
    assert "what the threads of rank 1" in text
    assert "stand_still" in text, "where rank 1 stands"
