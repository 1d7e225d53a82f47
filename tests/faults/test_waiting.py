"""A worker that keeps the others waiting is explained: who waits for whom, and what all threads do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.case import MAX_ITER, blobs, write_case
from tests.faults.ssh_lab import ROOT, SshLab

# Rank 1's compute thread stands at a named pipe in iteration 40; its other threads go on. What is still there after a
# restart finds the pipe gone.
STAND_STILL = """
import importlib.abc, importlib.machinery, sys
from pathlib import Path

def patch(solver):
    before = solver._clear_gradients
    def stand_still(self):
        gate = Path(__file__).parents[1] / "gate"
        if self.iter == 40 and gate.exists():
            gate.read_text()
        before(self)
    solver._clear_gradients = stand_still

class Patching(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "poseidon.solver.solver":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module
        def load_and_patch(module):
            load(module)
            patch(module.Solver)
        spec.loader.exec_module = load_and_patch
        return spec

sys.meta_path.insert(0, Patching())
"""


def prepare(folder: Path) -> dict[int, list[str]]:
    write_case(folder)
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text("")
    (folder / "still.py").write_text(STAND_STILL)
    os.mkfifo(folder / "gate")
    return {1: [f"mount --bind {folder}/still.py {folder}/site/sitecustomize.py"]}


@pytest.mark.full
def test_a_worker_that_keeps_others_waiting_is_explained(tmp_path):
    with SshLab(tmp_path, 2, mounts=prepare(tmp_path)) as lab:
        running = lab.train("--report-after=2", PYTHONPATH=f"{tmp_path}/site:{ROOT}")
        told = running.wait_for("an exchange has taken", "the stacks of all workers are in")
        running.wait_for("rank 0 (host ", "waits for ", "for rank 1", after=told)
        running.wait_for("rank 1 (host ", "computes or reads data", after=told)
        (tmp_path / "gate").write_text("")
        assert running.wait() == 0, running.text
    text = next(tmp_path.glob("snap_stuck_*.txt")).read_text()
    assert "what the threads of rank 1" in text
    assert "stand_still" in text, "where rank 1 stands"


@pytest.mark.full
def test_a_worker_whose_training_hangs_is_lost_and_the_job_goes_on(tmp_path):
    """Its other threads give signs of life all the time."""
    with SshLab(tmp_path, 2, mounts=prepare(tmp_path)) as lab:
        running = lab.train("--hang-after=3", "--max-restarts=1", PYTHONPATH=f"{tmp_path}/site:{ROOT}")
        lost = running.wait_for("error: rank 1 (host ", "made no progress for 3 s while all others wait for it")
        assert "it was at clock 40" in running.lines[lost]
        (tmp_path / "gate").unlink()
        assert running.wait() == 0, running.text
        lab.wait_for_nothing()
    assert "restart 1 of 1" in running.text
    assert "Resuming from snap_iter_30." in running.text
    assert blobs(tmp_path, MAX_ITER)
