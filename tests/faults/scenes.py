"""Faults, and the scenes they happen in: a job of several lab hosts, disturbed once at a moment the dice decide on.

A fault waits for its moment, does its harm, and says when that was (`Scene.strike`). What is mended is mended when the
job has noticed. What a host is to be like from the beginning (a small disk, a clock that is off) is prepared before it
starts.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.case import BASE, MAX_ITER
from tests.faults.ssh_lab import Gate, Running, SshLab, cpu_ticks, until

SCHEMES = ("ring", "server", "factors", "factor-server", "auto")


@dataclass(slots=True)
class Scene:
    """A disturbed run: the lab, what runs there, where it writes, and the dice. `struck_s`: when the harm was done."""

    lab: SshLab
    running: Running
    folder: Path
    chance: random.Random
    struck_s: float | None = None

    def reach(self, iteration: int) -> int:
        """Waits until rank 0 shows an iteration; the number of the line."""
        return self.running.wait_for("rank 0: ", f"Iteration {iteration} (")

    def somewhere(self) -> None:
        """Waits for an iteration in the midst of the run."""
        self.reach(10 * self.chance.randrange(BASE // 10 + 1, MAX_ITER // 20))

    def strike(self, act: Callable[[], object]) -> None:
        self.struck_s = time.monotonic()
        act()

    def kill(self, *hosts: int, number: signal.Signals = signal.SIGKILL) -> None:
        pids = [self.lab.workers_on(host)[-1] for host in hosts]
        self.strike(lambda: [os.kill(pid, number) for pid in pids])

    def other_host(self) -> int:
        return self.chance.randrange(1, self.lab.num_hosts)


# -- workers ----------------------------------------------------------------------------------------------------------
def kill_9(scene: Scene) -> None:
    scene.somewhere()
    scene.kill(scene.other_host())


def rank_0_dies(scene: Scene) -> None:
    scene.somewhere()
    scene.kill(0)


def stopped(scene: Scene) -> None:
    scene.somewhere()
    scene.kill(scene.other_host(), number=signal.SIGSTOP)


def two_die_at_once(scene: Scene) -> None:
    scene.somewhere()
    scene.kill(*scene.chance.sample(range(scene.lab.num_hosts), 2))


def dies_in_start_up(scene: Scene) -> None:
    """A moment of its start is told by its own progress: the hundredths of a second it has computed."""
    host, ticks = scene.other_host(), scene.chance.randrange(60)
    scene.running.wait_for("rank 0: ")  # nurseries are ready at about the same time
    until(lambda: bool(scene.lab.workers_on(host)), "a worker starts")
    pid = scene.lab.workers_on(host)[-1]
    until(lambda: cpu_ticks(pid) >= ticks, "it gets on")
    scene.kill(host)


def dies_while_testing(scene: Scene) -> None:
    scene.running.wait_for(f"Iteration {60 * scene.chance.randrange(1, 3)}, Testing net")
    scene.kill(scene.other_host())


# Stands still before the n-th step of writing snapshots (a file or folder is put on the disk, or takes its name).
HOLD = """
import os, threading
from pathlib import Path

folder, steps = Path(__file__).parents[1], []
number = int((folder / "hold").read_text()) if (folder / "hold").exists() else None
fsync, replace = os.fsync, os.replace

def step(path):
    if number is not None and ("snap_iter_" in path or path == str(folder)) and (folder / "hold").exists():
        steps.append(path)
        if len(steps) == number:
            (folder / "held").write_text("here")
            threading.Event().wait()

def held_fsync(file):
    step(os.readlink(f"/proc/self/fd/{file}"))
    fsync(file)

def held_replace(source, target, **options):
    step(str(target))
    replace(source, target, **options)

os.fsync, os.replace = held_fsync, held_replace
"""
STEPS = 8  # three files, two names, the folder, the state's name, the folder


def prepare_hold(folder: Path, chance: random.Random) -> dict[int, list[str]]:
    _write_site(folder, HOLD)
    (folder / "hold").write_text(str(1 + chance.randrange(STEPS * 3)))
    os.mkfifo(folder / "held")
    return {}


def dies_while_writing(scene: Scene) -> None:
    """Rank 0 dies between two steps of writing one of the first snapshots."""
    Gate(scene.folder / "held").wait()
    (scene.folder / "hold").unlink()
    scene.kill(0)


# -- hosts and links --------------------------------------------------------------------------------------------------
def host_dies(scene: Scene) -> None:
    """The power of a host goes, and comes back when the job has noticed."""
    host = scene.other_host()
    scene.somewhere()
    scene.strike(lambda: scene.lab.kill_host(host))
    scene.running.wait_for("error: host 10.77.0.")
    scene.lab.serve(host)


def link_cut_and_mended(scene: Scene) -> None:
    host = scene.other_host()
    scene.somewhere()
    scene.strike(lambda: scene.lab.lab.cut(host))
    scene.running.wait_for("error: host 10.77.0.", "is cut off")
    scene.lab.lab.mend(host)


def link_cut(scene: Scene) -> None:
    host = scene.other_host()
    scene.somewhere()
    scene.strike(lambda: scene.lab.lab.cut(host))


def slow_link(scene: Scene) -> None:
    host, rate = scene.chance.randrange(scene.lab.num_hosts), scene.chance.choice(("1mbit", "3mbit", "10mbit"))
    scene.somewhere()
    scene.strike(lambda: scene.lab.lab.slow(host, rate))


def _write_site(folder: Path, text: str) -> None:
    """What every Python of the job runs when it starts."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(text)


def prepare_clock(folder: Path, chance: random.Random) -> dict[int, list[str]]:
    _write_site(folder, "")
    shift_s = chance.choice((-86400, -3600, -60, 60, 3600, 86400))
    (folder / "shift.py").write_text(f"import time as t; now = t.time; t.time = lambda: now() + {shift_s}\n")
    host = chance.randrange(2)
    return {host: [f"mount --bind {folder}/shift.py {folder}/site/sitecustomize.py"]}


def clock_skew(scene: Scene) -> None:
    """It was off from the beginning."""


def prepare_small_disk(folder: Path, chance: random.Random) -> dict[int, list[str]]:
    """Rank 0's snapshots go to a disk that two files of 64 kB fill."""
    solver = folder / "solver.prototxt"
    (folder / "snaps").mkdir()
    solver.write_text(solver.read_text().replace('"snap"', '"snaps/snap"'))
    return {0: [f"mount -t tmpfs -o size=256k none {folder}/snaps", f"cp {folder}/snap_iter_* {folder}/snaps"]}


def full_disk(scene: Scene) -> None:
    """It is full for a while: at least one snapshot fails, training goes on, and the last one has room again."""
    scene.somewhere()
    snaps = scene.folder / "snaps"
    scene.strike(lambda: scene.lab.on_disk_of(0, f"cat /dev/zero > {snaps}/filler || true"))
    failed = scene.running.wait_for("failed, training goes on", "No space left on device")
    scene.running.wait_for("Iteration ", "iter/s", after=failed)
    scene.lab.on_disk_of(0, f"rm {snaps}/filler")


def fetch_small_disk(scene: Scene) -> None:
    scene.lab.on_disk_of(0, f"cp {scene.folder}/snaps/* {scene.folder}/")


def no_preparation(folder: Path, chance: random.Random) -> dict[int, list[str]]:
    return {}


def nothing_to_fetch(scene: Scene) -> None:
    """Snapshots are where they were."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`is_fatal`: the job has to start again. `loses_hosts`: so many fewer workers train after it. `prepare` says what
    hosts mount, `fetch` brings snapshots to where they are compared. `loses_snapshots`: some may be missing."""

    act: Callable[[Scene], None]
    is_fatal: bool = True
    loses_hosts: int = 0
    loses_snapshots: bool = False
    prepare: Callable[[Path, random.Random], dict[int, list[str]]] = no_preparation
    fetch: Callable[[Scene], None] = nothing_to_fetch


FAULTS: dict[str, Fault] = {
    "kill -9": Fault(kill_9),
    "rank 0 dies": Fault(rank_0_dies),
    "SIGSTOP": Fault(stopped),
    "two die at once": Fault(two_die_at_once),
    "a host dies and returns": Fault(host_dies),
    "link cut": Fault(link_cut, loses_hosts=1),
    "link cut and mended": Fault(link_cut_and_mended),
    "dies in start-up": Fault(dies_in_start_up),
    "dies while a snapshot is written": Fault(dies_while_writing, prepare=prepare_hold),
    "dies while testing": Fault(dies_while_testing),
    "slow link": Fault(slow_link, is_fatal=False),
    "clock skew": Fault(clock_skew, is_fatal=False, prepare=prepare_clock),
    "full disk": Fault(
        full_disk, is_fatal=False, loses_snapshots=True, prepare=prepare_small_disk, fetch=fetch_small_disk
    ),
}
