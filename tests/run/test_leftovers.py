"""What `poseidon kill` ends: processes of a job, and nothing that only has its name in the environment."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from poseidon.run import leftovers
from poseidon.run.leftovers import Found, is_poseidon, job_processes, kill_jobs
from poseidon.run.status import StatusFile, read_statuses, started_at, status_folder

ROOT = Path(__file__).parents[2]
JOB = f"test-{os.getpid()}"
# Looks like a worker, has started something else, and waits.
WORKER = """
import signal, subprocess
from poseidon.cli import main
print(subprocess.Popen(["sleep", "100"]).pid, flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(leftovers, "END_S", 0.5)


@contextlib.contextmanager
def started(*words: str, job: str = JOB) -> Iterator[subprocess.Popen[str]]:
    environ = {**os.environ, "POSEIDON_JOB": job, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_workers_end_with_what_they_started_and_others_stay():
    with (
        started(sys.executable, "-c", WORKER) as worker,
        started("sleep", "100") as neighbour,
        started(sys.executable, "-c", WORKER, job=f"{JOB}-other") as other,
    ):
        child = int(worker.stdout.readline())
        other_child = int(other.stdout.readline())
        ended = kill_jobs(JOB)
        assert {entry["pid"] for entry in ended} == {worker.pid, child}
        assert {entry["job"] for entry in ended} == {JOB}
        assert worker.wait(10) == -signal.SIGTERM
        assert neighbour.poll() is None, "a job's name in the environment is not enough"
        assert other.poll() is None
        os.kill(other_child, signal.SIGKILL)


def test_what_a_dead_worker_started_is_ended_too():
    """It belongs to nobody once its worker is gone: so it is remembered."""
    with started(sys.executable, "-c", WORKER) as worker:
        child = int(worker.stdout.readline())
        known = {(child, started_at(child))}
        worker.kill()
        worker.wait()
        assert [process.pid for process in job_processes(JOB)] == []
        assert [process.pid for process in job_processes(JOB, known)] == [child]
        os.kill(child, signal.SIGKILL)


def test_a_number_that_another_process_has_got_is_left_alone():
    with started("sleep", "100") as process:
        Found(process.pid, 1, started_at(process.pid) - 1, JOB, True).send(signal.SIGKILL)
        assert process.poll() is None
        Found(process.pid, 1, started_at(process.pid), JOB, True).send(signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
        Found(process.pid, 1, 1, JOB, True).send(signal.SIGKILL)  # nobody is there: nothing happens


def test_a_launcher_is_ended_only_if_it_is_one(tmp_path):
    """A status file of a launcher that was killed, whose number something else has got."""
    folder = status_folder(os.environ)
    with started("sleep", "100", job="") as other, started(sys.executable, "-c", WORKER, job="") as launcher:
        os.kill(int(launcher.stdout.readline()), signal.SIGKILL)
        for process in (other, launcher):
            facts = {"is_launcher": True, "job": JOB, "pid": process.pid, "started": started_at(process.pid)}
            (folder / f"{process.pid}.json").write_text(json.dumps(facts))
        assert kill_jobs(JOB) == []
        assert launcher.wait(10) == -signal.SIGTERM
        assert other.poll() is None


def test_a_status_of_a_process_with_the_same_number_is_removed():
    folder = status_folder(os.environ)
    StatusFile(folder, "mine").write({"job": "a"})
    facts = {"pid": os.getpid(), "started": started_at(os.getpid()) - 1, "job": "b"}
    (folder / "old.json").write_text(json.dumps(facts))
    assert [status["job"] for status in read_statuses(folder)] == ["a"]
    assert not (folder / "old.json").exists()


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("python -m poseidon train --solver=s", True),
        ("/opt/venv/bin/python3.11 /opt/venv/bin/poseidon train", True),
        ("/opt/venv/bin/python -m poseidon.run.nursery 5 17 poseidon.cli.team", True),
        ("/opt/venv/bin/caffe train", True),
        ("python -m torch.distributed.run --nproc-per-node=2 -m poseidon train", True),
        ("vim poseidon", False),
        ("less poseidon.log", False),
        ("bash train.sbatch", False),
        ("python -m pytest poseidon", False),
        ("python", False),
    ],
)
def test_command_lines(line, is_one):
    assert bool(is_poseidon(line.split())) is is_one
