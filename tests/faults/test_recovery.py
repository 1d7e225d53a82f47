"""Faults happen to running jobs, and the job goes on by itself to the result of an undisturbed run, bit for bit.

The oracle is the undisturbed run: its last snapshot, weights and histories. Disturbed runs begin with its first
snapshot, because that brings its plan: how sums are taken decides their last bits.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.case import BASE, MAX_ITER, SNAPSHOT, blobs, copy_base, files_of, history, write_case
from tests.faults.ssh_lab import Running, SshLab, until

NUM_HOSTS = 2
NUM_HOSTS_FULL = 4
NUM_SEEDS = 20
SCHEMES = ("ring", "server", "factors", "factor-server", "auto")
RECOVER_S = 20.0


@dataclass(frozen=True, slots=True)
class Scene:
    """A disturbed run: the lab, what runs there, where it writes, and the dice."""

    lab: SshLab
    running: Running
    folder: Path
    chance: random.Random

    def reach(self, iteration: int) -> int:
        """Waits until rank 0 shows an iteration; the number of the line."""
        return self.running.wait_for("rank 0: ", f"Iteration {iteration} (")

    def somewhere(self) -> int:
        """An iteration in the midst of the run."""
        return self.reach(10 * self.chance.randrange(BASE // 10 + 1, MAX_ITER // 20))

    def worker(self, host: int) -> int:
        return self.lab.workers_on(host)[-1]

    def other_host(self) -> int:
        return self.chance.randrange(1, self.lab.num_hosts)


# -- faults -----------------------------------------------------------------------------------------------------------
def kill_9(scene: Scene) -> None:
    scene.somewhere()
    os.kill(scene.worker(scene.other_host()), signal.SIGKILL)


def rank_0_dies(scene: Scene) -> None:
    scene.somewhere()
    os.kill(scene.worker(0), signal.SIGKILL)


def stopped(scene: Scene) -> None:
    scene.somewhere()
    os.kill(scene.worker(scene.other_host()), signal.SIGSTOP)


def two_die_at_once(scene: Scene) -> None:
    scene.somewhere()
    for pid in [scene.worker(host) for host in scene.chance.sample(range(scene.lab.num_hosts), 2)]:
        os.kill(pid, signal.SIGKILL)


def host_dies(scene: Scene) -> None:
    """The power of a host goes, and comes back when the job has noticed."""
    host = scene.other_host()
    scene.somewhere()
    scene.lab.kill_host(host)
    scene.running.wait_for("error: host 10.77.0.")
    scene.lab.serve(host)


def link_cut_and_mended(scene: Scene) -> None:
    host = scene.other_host()
    scene.somewhere()
    scene.lab.lab.cut(host)
    scene.running.wait_for("error: host 10.77.0.", "is cut off")
    scene.lab.lab.mend(host)


def dies_in_start_up(scene: Scene) -> None:
    host = scene.other_host()
    until(lambda: bool(scene.lab.workers_on(host)), "a worker starts")
    pid = scene.worker(host)
    reads = scene.chance.randrange(200)
    for _ in range(reads):  # a moment of its start, told by its own progress: pages it has touched
        Path(f"/proc/{pid}/statm").read_text()
    os.kill(pid, signal.SIGKILL)


def dies_while_writing(scene: Scene) -> None:
    """Rank 0 dies when a snapshot is being written, as far as that can be seen from outside."""
    at = SNAPSHOT * scene.chance.randrange(BASE // SNAPSHOT + 1, MAX_ITER // SNAPSHOT // 2 + 1)
    scene.running.wait_for("Snapshotting solver state", f"snap_iter_{at}.")
    os.kill(scene.worker(0), signal.SIGKILL)


def dies_while_testing(scene: Scene) -> None:
    scene.running.wait_for(f"Iteration {60 * scene.chance.randrange(1, 3)}, Testing net")
    os.kill(scene.worker(scene.other_host()), signal.SIGKILL)


FAULTS: dict[str, Callable[[Scene], None]] = {
    "kill -9": kill_9,
    "rank 0 dies": rank_0_dies,
    "SIGSTOP": stopped,
    "two die at once": two_die_at_once,
    "a host dies and returns": host_dies,
    "link cut and mended": link_cut_and_mended,
    "dies in start-up": dies_in_start_up,
    "dies while a snapshot is written": dies_while_writing,
    "dies while testing": dies_while_testing,
}
SAMPLE = [("kill -9", "factors", 0)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fault" in metafunc.fixturenames:
        full = [
            (fault, SCHEMES[(seed + place) % len(SCHEMES)], seed)
            for (place, fault), seed in itertools.product(enumerate(FAULTS), range(NUM_SEEDS))
        ]
        is_full = metafunc.config.getoption("--full")
        metafunc.parametrize(("fault", "scheme", "seed"), full if is_full else SAMPLE)


@dataclass(frozen=True, slots=True)
class Undisturbed:
    folder: Path
    num_hosts: int


@pytest.fixture(scope="module")
def undisturbed(request, tmp_path_factory) -> Callable[[str], Undisturbed]:
    """The run that nothing happens to, one for each scheme."""
    found: dict[str, Undisturbed] = {}
    num_hosts = NUM_HOSTS_FULL if request.config.getoption("--full") else NUM_HOSTS

    def run(scheme: str) -> Undisturbed:
        if scheme not in found:
            folder = tmp_path_factory.mktemp(scheme)
            write_case(folder)
            with SshLab(folder, num_hosts) as lab:
                running = lab.train(f"--scheme={scheme}")
                assert running.wait() == 0, running.text
            found[scheme] = Undisturbed(folder, num_hosts)
        return found[scheme]

    return run


@pytest.fixture
def folder(tmp_path) -> Iterator[Path]:
    write_case(tmp_path)
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_a_job_survives(fault, scheme, seed, undisturbed, folder):
    expected = undisturbed(scheme)
    copy_base(expected.folder, folder)
    with SshLab(folder, expected.num_hosts) as lab:
        running = lab.train("--snapshot=auto", "--max-restarts=3", f"--scheme={scheme}")
        FAULTS[fault](Scene(lab, running, folder, random.Random(f"{fault} {seed}")))
        assert running.wait() == 0, running.text
        until(lambda: not any(lab.left_on(host) for host in range(lab.num_hosts)), "nothing is left on any host", 20)
    assert "restart 1 of 3" in running.text, "the fault has to be one"
    assert blobs(folder, MAX_ITER) == blobs(expected.folder, MAX_ITER), running.text
    assert history(folder, MAX_ITER) == history(expected.folder, MAX_ITER)
    assert {path.name for path in folder.glob("snap_iter_*.solverstate")} == {
        path.name for path in expected.folder.glob("snap_iter_*.solverstate")
    }, "no snapshot is lost"
    assert not list(folder.glob("*.partial-*"))
    assert len(files_of(folder, MAX_ITER)) == 3
