"""The launcher with small scripts as workers: what is shown, what is passed on, and that nobody is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from poseidon.run import launcher
from poseidon.run.launcher import LocalJob, free_port, launch

ROOT = Path(__file__).parents[2]
BEGIN = """
import os, signal, sys
from poseidon.run.launcher import accept_signals, follow_launcher
from poseidon.run.rendezvous import find_place
place = find_place(os.environ)
"""


def job(script: str, num_workers: int = 3) -> LocalJob:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return LocalJob("poseidon", (sys.executable, "-c", BEGIN + script), num_workers, environ)


def run(script: str, num_workers: int = 3) -> tuple[int, list[str]]:
    """The exit code, and what the user is told."""
    told: list[str] = []
    return launch(job(script, num_workers), told.append), told


@pytest.fixture
def impatient(monkeypatch):
    """No waiting for workers to notice anything by themselves."""
    monkeypatch.setattr(launcher, "NOTICE_S", 0.0)
    monkeypatch.setattr(launcher, "END_S", 0.0)


# -- output ---------------------------------------------------------------------------------------------------------
def test_rank_0_has_the_launchers_output_the_others_a_prefix(capfd):
    code, told = run(
        """
assert place.local_rank == place.rank and place.local_size == place.size == 3
sys.stdout.write(f"out of {place.rank}\\nno end of line")
sys.stdout.flush()
sys.stderr.write(f"\\x1b[1merror of {place.rank}\\n\\xff")
"""
    )
    assert code == 0
    captured = capfd.readouterr()
    assert captured.out == "out of 0\nno end of line"
    assert captured.err == "\x1b[1merror of 0\nÿ"
    for rank in (1, 2):
        mine = [line for line in told if line.startswith(f"rank {rank}: ")]
        assert mine == [
            f"rank {rank}: out of {rank}",
            f"rank {rank}: no end of line\x1b[1merror of {rank}",
            f"rank {rank}: ÿ",
        ]
    assert len(told) == 6


def test_workers_of_a_job_meet_at_one_place():
    _, told = run("print(place.master_address, place.master_port, place.launcher_pid)")
    assert len({line.partition(": ")[2] for line in told}) == 1
    assert told[0].endswith(f" {os.getpid()}")


# -- ends -------------------------------------------------------------------------------------------------------------
ENDLESS = "\nwhile True: signal.pause()"


def test_when_one_fails_the_others_are_ended(impatient):
    code, told = run("if place.rank == 1: print('no such file'); sys.exit(3)" + ENDLESS)
    assert code == 3
    assert told == ["rank 1: no such file"]


def test_workers_get_a_moment_to_say_why_they_end():
    """Longer than these need, far below the limit: those that end by themselves are not ended."""
    code, told = run("print('lost' if place.rank else ''); sys.exit(4 if place.rank else 5)")
    assert code in (4, 5)
    assert sorted(told) == ["rank 1: lost", "rank 2: lost"]


def test_a_killed_worker_is_named(impatient):
    code, told = run("if place.rank == 2: os.kill(os.getpid(), signal.SIGKILL)" + ENDLESS)
    assert code == 128 + signal.SIGKILL
    (line,) = told
    assert line.startswith("poseidon: error: rank 2 (host ")
    assert line.endswith("was ended by SIGKILL; was the memory of this host used up?")


@pytest.mark.parametrize(
    ("codes", "first"),
    [([None, 0, None], None), ([1, None, 3], 0), ([1, -9, None], 1), ([0, 2, -11], 2), ([0, 0], None)],
)
def test_of_several_that_fail_at_once_the_killed_one_counts(codes, first):
    workers = [SimpleNamespace(rank=rank, exit_code=code) for rank, code in enumerate(codes)]
    found = launcher._first_failed(workers)
    assert (found and found.rank) == first


def test_a_crashed_rank_0_is_named(impatient):
    code, told = run("if place.rank == 0: os.abort()" + ENDLESS)
    assert code == 128 + signal.SIGABRT
    assert ["rank 0" in line and "SIGABRT" in line for line in told] == [True]


def test_who_ignores_sigterm_is_killed(impatient):
    code, told = run(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if place.rank == 1: print('ready', flush=True); sys.exit(1)" + ENDLESS
    )
    assert (code, told) == (1, ["rank 1: ready"])


def test_nothing_is_left_behind(tmp_path, impatient):
    """Workers and what they started hold a pipe open for writing: it comes to its end when the last one is gone."""
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reading, True)
    script = f"""
alive = os.open({str(fifo)!r}, os.O_WRONLY)
os.write(alive, b"{{}}\\n".replace(b"{{}}", str(os.getpid()).encode()))
if os.fork() == 0:
    os.write(alive, f"{{os.getpid()}}\\n".encode())
elif place.rank == 0:
    sys.exit(7)
"""
    code, _ = run(script + ENDLESS, num_workers=2)
    assert code == 7
    with os.fdopen(reading, "rb") as alive:
        pids = [int(line) for line in alive.read().split()]
    assert len(set(pids)) >= 2
    for pid in pids[:2]:
        assert not Path(f"/proc/{pid}/exe").exists()


# -- signals ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_signals_wait_for_workers_that_cannot_answer_yet(number):
    """The signal is there before the handler is; it is delivered once, when the worker opens itself."""
    before = signal.getsignal(number)
    code, told = run(
        f"""
if place.rank == 0:
    os.kill(os.getppid(), {int(number)})
while {int(number)} not in signal.sigpending():
    pass
count = 0
def handle(number, frame):
    global count
    count += 1
signal.signal({int(number)}, handle)
accept_signals()
print(count)
"""
    )
    assert code == 0
    assert sorted(told) == ["rank 1: 1", "rank 2: 1"]
    assert signal.getsignal(number) == before


def test_sigterm_ends_all_and_is_no_surprise():
    code, told = run("if place.rank == 1: os.kill(os.getppid(), signal.SIGTERM)" + ENDLESS)
    assert (code, told) == (128 + signal.SIGTERM, [])


LAUNCHER = """
import sys
from tests.run.test_launcher import job
from poseidon.run.launcher import launch
sys.exit(launch(job(sys.argv[1]), print))
"""


@contextlib.contextmanager
def launched(script: str) -> Iterator[subprocess.Popen[str]]:
    """The launcher in a process of its own, which does not outlive the test; one that hangs is killed."""
    words = [sys.executable, "-c", LAUNCHER, "follow_launcher(place)\n" + script]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def test_workers_do_not_outlive_a_killed_launcher(tmp_path):
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    script = f"alive = os.open({str(fifo)!r}, os.O_WRONLY); os.write(alive, b'x')"
    with launched(script + ENDLESS) as process, fifo.open("rb") as alive:
        assert [alive.read(1) for _ in range(3)] == [b"x"] * 3
        process.kill()
        assert alive.read() == b""


def test_a_worker_born_without_its_launcher_ends(tmp_path):
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x"}
    environ |= {"MASTER_PORT": "1", "POSEIDON_LAUNCHER_PID": "1" if os.getpid() != 1 else "2"}
    script = BEGIN + "follow_launcher(place); print('lives')"
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_ctrl_z_stops_all_workers():
    script = "print(os.getpid(), flush=True) if place.rank == 0 else None" + ENDLESS
    with launched(script) as process:
        worker = int(process.stdout.readline())
        process.send_signal(signal.SIGTSTP)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        while Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert process.poll() is None, "the watchdog had to end it: its worker did not stop"
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM


def test_ports_are_free_and_not_always_the_same():
    assert len({free_port() for _ in range(20)}) > 1
