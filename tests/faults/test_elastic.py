"""torchrun, elastic: when a worker dies, torchrun starts all of them again, and they go on from the newest snapshot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.faults.case import MAX_ITER, blobs, write_case
from tests.faults.ssh_lab import ROOT, Running

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2", "-m", "poseidon")


@pytest.mark.full
def test_a_killed_worker_is_started_again(tmp_path):
    write_case(tmp_path)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "POSEIDON_SECRET": "s" * 32}
    words = [sys.executable, *TORCHRUN, "train", "--solver=solver.prototxt", "--snapshot=auto", "--plain"]
    process = subprocess.Popen(
        words, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    running = Running(process)
    threading.Thread(target=running.read, daemon=True).start()
    try:
        running.wait_for("Iteration 90 (")
        os.kill(_worker(process.pid), signal.SIGKILL)
        assert running.wait() == 0, running.text
    finally:
        process.kill()
    resumed = running.wait_for("Resuming from snap_iter_")
    assert int(running.lines[resumed].partition("snap_iter_")[2].partition(".")[0]) >= 60
    assert blobs(tmp_path, MAX_ITER)


def _worker(agent: int) -> int:
    """Rank 1's process, a child of torchrun's agent."""
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    return next(int(pid) for pid in children if b"\0RANK=1\0" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes())
