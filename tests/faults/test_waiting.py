"""A worker that keeps the others waiting is explained: who waits for whom, and what all threads do."""

from __future__ import annotations

import os

import pytest

from tests.faults.case import write_case
from tests.faults.ssh_lab import ROOT, SshLab

# Rank 1's compute thread stands at a named pipe in iteration 40; its other threads go on.
STAND_STILL = """
import importlib.abc, importlib.machinery, sys
from pathlib import Path

def patch(solver):
    before = solver._clear_gradients
    def stand_still(self):
        if self.iter == 40:
            (Path(__file__).parents[1] / "gate").read_text()
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


@pytest.mark.full
def test_a_worker_that_keeps_others_waiting_is_explained(tmp_path):
    write_case(tmp_path)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("")
    (tmp_path / "still.py").write_text(STAND_STILL)
    os.mkfifo(tmp_path / "gate")
    mounts = {1: [f"mount --bind {tmp_path}/still.py {tmp_path}/site/sitecustomize.py"]}
    with SshLab(tmp_path, 2, mounts=mounts) as lab:
        running = lab.train("--report-after=2", PYTHONPATH=f"{tmp_path}/site:{ROOT}")
        told = running.wait_for("an exchange has taken", "the stacks of all workers are in")
        running.wait_for("rank 0 (host ", "waits for ", "for rank 1", after=told)
        running.wait_for("rank 1 (host ", "computes or reads data", after=told)
        (tmp_path / "gate").write_text("")
        assert running.wait() == 0, running.text
    text = next(tmp_path.glob("snap_stuck_*.txt")).read_text()
    assert "what the threads of rank 1" in text
    assert "stand_still" in text, "where rank 1 stands"
