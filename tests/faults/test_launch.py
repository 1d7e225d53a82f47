"""Launching over a real sshd: what is refused, what is passed on, and that nothing is left on any host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import poseidon
from tests.faults.case import MAX_ITER, write_case
from tests.faults.ssh_lab import ROOT, SshLab, address, until, words_of

ENDLESS = "max_iter: 1000000"


@pytest.fixture
def folder(tmp_path) -> Path:
    write_case(tmp_path)
    return tmp_path


def endless(folder: Path) -> None:
    path = folder / "solver.prototxt"
    path.write_text(path.read_text().replace(f"max_iter: {MAX_ITER}", ENDLESS))


def test_hosts_that_lack_something_are_refused_before_any_worker_starts(folder):
    mounts = {1: [f"mount --bind /dev/null {folder}/net.prototxt"], 2: [f"mount -t tmpfs none {folder}"]}
    with SshLab(folder, 3, mounts=mounts, without_sshd=(2,)) as lab:
        running = lab.train(hosts=f"{address(0)},{address(1)},{address(2)}")
        assert running.wait() == 1
        (line,) = running.lines
        assert f"host {address(1)} has another net.prototxt than is here" in line
        assert f"host {address(2)} cannot be reached by ssh: " in line
        assert "Connection refused" in line
        assert "poseidon doctor" in line
        lab.wait_for_nothing()


def test_ctrl_c_reaches_all_workers_and_they_save_their_work(folder):
    endless(folder)
    with SshLab(folder, 2) as lab:
        running = lab.train(hosts=lab.hosts(1, 2))
        shown = running.wait_for("rank 0: ", "Iteration 30 (")
        secrets_seen = [pid for pid in lab.left() if b"POSEIDON_SECRET" in words_of(pid)]
        assert secrets_seen == [], "the secret is on no command line"
        os.kill(lab.launcher(), signal.SIGINT)
        assert running.wait() == 0, running.text
        running.wait_for("Snapshotting solver state", after=shown)
        lab.wait_for_nothing()
    assert all(line.startswith(("rank 0: ", "rank 1: ", "rank 2: ")) for line in running.lines)


@pytest.mark.full
def test_a_killed_launcher_leaves_nothing(folder):
    endless(folder)
    with SshLab(folder, 2) as lab:
        running = lab.train()
        running.wait_for("rank 0: ", "Iteration 30 (")
        os.kill(lab.launcher(), signal.SIGKILL)
        running.wait()
        lab.wait_for_nothing()


@pytest.mark.full
def test_a_dead_ssh_is_a_lost_host(folder):
    endless(folder)
    with SshLab(folder, 2) as lab:
        running = lab.train()
        running.wait_for("rank 0: ", "Iteration 30 (")
        (ssh,) = [
            pid for pid in lab.pids(0) if words_of(pid).startswith(b"ssh\0") and address(1).encode() in words_of(pid)
        ]
        os.kill(ssh, signal.SIGKILL)
        assert running.wait() in (1, 3), running.text
        assert f"host {address(1)} (rank 1) is lost: the connection to it ended" in running.text
        lab.wait_for_nothing()


@pytest.mark.full
def test_fewer_machines_go_on_and_one_that_returns_is_taken_back(folder):
    endless(folder)
    with SshLab(folder, 3) as lab:
        running = lab.train("--max-restarts=3", "--min-workers=2")
        running.wait_for("rank 0: ", "Iteration 60 (")
        lab.kill_host(2)
        lost = running.wait_for("error: host 10.77.0.3", "is lost")
        again = running.wait_for("cluster   2 workers", after=lost)
        running.wait_for("rank 0: ", "Iteration ", "iter/s", after=again)
        lab.serve(2)
        back = running.wait_for("host 10.77.0.3 is back", after=again)
        whole = running.wait_for("cluster   3 workers", after=back)
        running.wait_for("rank 0: ", "Iteration ", "iter/s", after=whole)
        os.kill(lab.launcher(), signal.SIGINT)
        assert running.wait() == 0, running.text
        lab.wait_for_nothing()
    assert running.text.count("restart ") == 1, "a return costs none"


@pytest.mark.full
def test_status_and_kill_from_another_host(folder):
    endless(folder)
    with SshLab(folder, 2) as lab:
        running = lab.train()
        running.wait_for("rank 0: ", "Iteration 100 (")
        where = (f"--hosts={lab.hosts()}", f"--ssh={lab.ssh}")
        until(lambda: "of 1000000, loss " in _said(lab, "status", *where), "status")
        shown = _said(lab, "status", *where)
        assert shown.count("pf") >= 2, "both hosts are named"
        told = _said(lab, "kill", *where)
        assert "ended pid" in told
        running.wait()
        lab.wait_for_nothing()


@pytest.mark.full
def test_hosts_of_another_version_can_still_be_asked_and_cleared(folder):
    """Somebody has installed another one while the job ran, and this folder is not there."""
    own = Path(poseidon.__file__)
    (folder / "init.py").write_text(own.read_text().replace(poseidon.__version__, "9.9.9"))
    mounts = {1: [f"mount --bind {folder}/init.py {own}"]}
    with SshLab(folder, 2, mounts=mounts) as lab:
        where = (f"--hosts={address(1)}", f"--ssh={lab.ssh}")
        script = "from poseidon.cli import main; print('up', flush=True); import signal; signal.pause()"
        left = lab.lab.start(1, ["env", "POSEIDON_JOB=old", sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert left.stdout.readline() == b"up\n"
        assert "no job runs" in _said(lab, "status", *where)
        assert f"host {address(1)}: ended pid {left.pid} of job old" in _said(lab, "kill", *where)
        assert left.wait(30) == -signal.SIGTERM


def _said(lab: SshLab, *words: str) -> str:
    running = lab.start(*words)
    running.wait()
    return running.text


def test_ssh_is_missed_by_name(folder):
    done = subprocess.run(
        [sys.executable, "-m", "poseidon", "train", "--solver=solver.prototxt", "--hosts=a,b", "--ssh=no-such-ssh"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "there is no 'no-such-ssh' here; install openssh-client" in done.stderr
