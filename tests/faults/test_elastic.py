"""torchrun, elastic: when a worker dies, torchrun starts all of them again, and they go on from the newest snapshot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bench.netlab import Lab, Links
from tests.faults.case import MAX_ITER, blobs, write_case
from tests.faults.ssh_lab import ROOT, Running, address

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


def _worker(agent: int, rank: int | None = 1) -> int:
    """A rank's process, or any worker's, a child of torchrun's agent."""
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    sought = b"\0RANK=" + (b"" if rank is None else b"%d\0" % rank)
    return next(int(pid) for pid in children if sought in b"\0" + Path(f"/proc/{pid}/environ").read_bytes())


@pytest.mark.full
def test_a_machine_that_joins_and_one_that_loses_a_worker(tmp_path):
    """torchrun then starts all workers again, and counts that on one machine only, or on none."""
    write_case(tmp_path)
    solver = tmp_path / "solver.prototxt"
    solver.write_text(solver.read_text().replace(f"max_iter: {MAX_ITER}", "max_iter: 1000000"))
    environ = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "POSEIDON_SECRET": "s" * 32, "POSEIDON_JOB": "elastic"}
    environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else it does not tell who joins where the others meet
    clean = ["env", *(f"--unset={name}" for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))]
    clean += ["--unset=MASTER_ADDR", "--unset=MASTER_PORT", *(f"{name}={text}" for name, text in environ.items())]
    torchrun = ["-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=2", "--max-restarts=3"]
    torchrun += ["--rdzv-backend=c10d", "--rdzv-id=elastic", f"--rdzv-endpoint={address(0)}:29400"]
    train = ["-m", "poseidon", "train", "--solver=solver.prototxt", "--snapshot=auto", "--plain"]
    with Lab(f"pe{os.getpid()}", 2, Links(("none",))) as lab:

        def start(host: int) -> Running:
            own = (
                f"--local-addr={address(host)}",
                f"--rdzv-conf=is_host={int(host == 0)}",
            )  # names do not resolve here
            words = [*clean, sys.executable, *torchrun, *own, *train]
            process = lab.start(host, words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            running = Running(process)
            threading.Thread(target=running.read, daemon=True).start()
            return running

        first = start(0)
        first.wait_for("Iteration 60 (")
        second = start(1)
        joined = first.wait_for("cluster   4 workers")
        first.wait_for("Iteration ", "iter/s", after=joined)
        os.kill(_worker(second.process.pid, rank=None), signal.SIGKILL)
        again = first.wait_for("cluster   4 workers", after=joined + 1)
        first.wait_for("Iteration ", "iter/s", after=again)
        for running in (first, second):
            running.process.kill()
