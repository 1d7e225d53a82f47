"""Faults, and the scenes they happen in: a job of several lab hosts, disturbed some times at moments the dice choose,
each time when it has recovered from the time before.

A fault waits for its moment, does its harm, and notes when that was (`Scene.strike`). What is mended is mended when the
job has noticed. What a host is to be like from the beginning (a small disk, a clock that is off) is prepared before it
starts.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.case import BASE
from tests.faults.ssh_lab import Gate, Running, SshLab, cpu_ticks, until

PART = 50  # iterations of the part of a run in which a fault happens
SCHEMES = ("ring", "server", "factors", "factor-server", "auto")


@dataclass(frozen=True, slots=True)
class Strike:
    """When harm was done, and what the job had said until then."""

    at_s: float
    line: int


@dataclass(slots=True)
class Scene:
    """A disturbed run: the lab, what runs there, where it writes, and the dice."""

    lab: SshLab
    running: Running
    folder: Path
    chance: random.Random
    strikes: list[Strike] = field(default_factory=list)
    cut: set[int] = field(default_factory=set)  # hosts that are cut off for good

    @property
    def line(self) -> int:
        """What comes from here on was said after the last harm."""
        return self.strikes[-1].line if self.strikes else 0

    def wait_for(self, *words: str) -> int:
        return self.running.wait_for(*words, after=self.line)

    def somewhere(self) -> None:
        """Waits for an iteration of the next part of the run."""
        first = BASE + 10 + len(self.strikes) * PART
        self.wait_for("rank 0: ", f"Iteration {self.chance.randrange(first, first + PART - 10, 10)} (")

    def strike(self, act: Callable[[], object]) -> None:
        self.strikes.append(Strike(time.monotonic(), len(self.running.lines)))
        act()

    def kill(self, *hosts: int, number: signal.Signals = signal.SIGKILL) -> None:
        pids = [self.lab.workers_on(host)[-1] for host in hosts]
        self.strike(lambda: [os.kill(pid, number) for pid in pids])

    def other_host(self) -> int:
        """Not the first one, where the command was given."""
        return self.chance.choice([host for host in range(1, self.lab.num_hosts) if host not in self.cut])


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
    before = set(scene.lab.workers_on(host)) if scene.strikes else set()
    scene.wait_for("rank 0: ")  # nurseries are ready at about the same time
    until(lambda: bool(set(scene.lab.workers_on(host)) - before), "a worker starts")
    pid = scene.lab.workers_on(host)[-1]
    until(lambda: cpu_ticks(pid) >= ticks, "it gets on")
    scene.kill(host)


def dies_while_testing(scene: Scene) -> None:
    """The second time in the same test as before, the others in later ones."""
    at = 60 * max(1, len(scene.strikes))
    scene.wait_for("rank 0: ", f"Iteration {at}, Testing net")
    scene.kill(scene.other_host())


# Stands still before the n-th step of writing snapshots (a file or folder is put on the disk, or takes its name).
HOLD = """
import os, threading
from pathlib import Path

folder, steps = Path(__file__).parents[1], []
fsync, replace = os.fsync, os.replace

def step(path):
    if ("snap_iter_" in path or path == str(folder)) and (folder / "hold").exists():
        steps.append(path)
        if len(steps) == int((folder / "hold").read_text()):
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
    (folder / "hold").write_text(str(1 + chance.randrange(STEPS)))
    os.mkfifo(folder / "held")
    return {}


def dies_while_writing(scene: Scene) -> None:
    """Rank 0 dies between two steps of writing one of its first two snapshots."""
    Gate(scene.folder / "held").wait()
    if len(scene.strikes) < TIMES - 1:
        (scene.folder / "hold").write_text(str(1 + scene.chance.randrange(STEPS + STEPS // 2)))
    else:
        (scene.folder / "hold").unlink()
    scene.kill(0)


# -- hosts and links --------------------------------------------------------------------------------------------------
def host_dies(scene: Scene) -> None:
    """The power of a host goes, and comes back when the job has noticed."""
    host = scene.other_host()
    scene.somewhere()
    scene.strike(lambda: scene.lab.kill_host(host))
    scene.wait_for("error: host 10.77.0.")
    scene.lab.serve(host)


def link_cut_and_mended(scene: Scene) -> None:
    host = scene.other_host()
    scene.somewhere()
    scene.strike(lambda: scene.lab.lab.cut(host))
    noticed = scene.wait_for("error: host 10.77.0.", "is cut off")
    scene.lab.lab.mend(host)
    # It is back before it is cut off again: where the cut took its time, the next part of the run may be over already.
    scene.running.wait_for("Initializing solver from parameters", after=noticed)


def link_cut(scene: Scene) -> None:
    host = scene.other_host()
    scene.somewhere()
    scene.cut.add(host)
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
    failed = scene.wait_for("failed, training goes on", "No space left on device")
    scene.lab.on_disk_of(0, f"rm {snaps}/filler")
    scene.running.wait_for("Iteration ", "iter/s", after=failed)


def fetch_small_disk(scene: Scene) -> None:
    scene.lab.on_disk_of(0, f"cp {scene.folder}/snaps/* {scene.folder}/")


def no_preparation(folder: Path, chance: random.Random) -> dict[int, list[str]]:
    return {}


def nothing_to_fetch(scene: Scene) -> None:
    """Snapshots are where they were."""


TIMES = 4


@dataclass(frozen=True, slots=True)
class Fault:
    """It happens `times` times in a run, on `num_hosts` hosts (0: from 2 to 4).

    is_fatal          the job has to start again
    loses_hosts       one less worker trains after each time
    loses_snapshots   some may be missing
    prepare           says what hosts mount
    fetch             brings snapshots to where they are compared
    """

    act: Callable[[Scene], None]
    times: int = TIMES
    num_hosts: int = 0
    is_fatal: bool = True
    loses_hosts: bool = False
    loses_snapshots: bool = False
    prepare: Callable[[Path, random.Random], dict[int, list[str]]] = no_preparation
    fetch: Callable[[Scene], None] = nothing_to_fetch


FAULTS: dict[str, Fault] = {
    "kill -9": Fault(kill_9),
    "rank 0 dies": Fault(rank_0_dies),
    "SIGSTOP": Fault(stopped),
    "two die at once": Fault(two_die_at_once),
    "a host dies and returns": Fault(host_dies),
    "link cut": Fault(link_cut, times=2, num_hosts=3, loses_hosts=True),
    "link cut and mended": Fault(link_cut_and_mended),
    "dies in start-up": Fault(dies_in_start_up),
    "dies while a snapshot is written": Fault(dies_while_writing, prepare=prepare_hold),
    "dies while testing": Fault(dies_while_testing),
    "slow link": Fault(slow_link, is_fatal=False),
    "clock skew": Fault(clock_skew, times=1, num_hosts=2, is_fatal=False, prepare=prepare_clock),
    "full disk": Fault(
        full_disk,
        times=2,  # later there would not be the time to make room before the last snapshot, which must succeed
        num_hosts=2,
        is_fatal=False,
        loses_snapshots=True,
        prepare=prepare_small_disk,
        fetch=fetch_small_disk,
    ),
}
