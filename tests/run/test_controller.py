"""The controller with agents of this host and small scripts as workers: lines, signals, ends, restarts, returns."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from poseidon.errors import UsageError
from poseidon.run import controller, fleet, site
from poseidon.run.controller import ClusterJob, Recovery, run_cluster
from poseidon.run.exits import LOST_ANOTHER, MISTAKE, YIELDED
from poseidon.run.hosts import Host
from poseidon.run.inventory import Inventory, differences, mark_of, take_inventory
from poseidon.run.messages import MAX_LINE_BYTES, Inbox, packed
from poseidon.run.site import Entry, portable

ROOT = Path(__file__).parents[2]
BEGIN = """
import os, signal, sys
from poseidon.run.launcher import accept_signals, follow
from poseidon.run.rendezvous import find_place, launcher_of
place = find_place(os.environ)  # None: the only one
follow(launcher_of(os.environ))
restart = int(os.environ["POSEIDON_RESTART"])
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(controller, "NOTICE_S", 0.5)
    monkeypatch.setattr(controller, "END_S", 0.2)
    monkeypatch.setattr(controller, "GATHER_S", 0.5)
    monkeypatch.setattr(controller, "WAIT_S", 2.0)
    monkeypatch.setattr(fleet, "RETRY_S", 0.3)


def job(folder: Path, script: str, hosts: tuple[Host, ...], recovery: Recovery | None = None) -> ClusterJob:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "POSEIDON_JOB": "test"}
    entry = Entry(("ssh",), str(folder), environ, ())
    command = (sys.executable, "-c", BEGIN + script)
    return ClusterJob("poseidon", command, hosts, entry, "s" * 32, recovery or Recovery())


def run(folder: Path, script: str, num_workers: int = 2, **recovery: int) -> tuple[int, list[str]]:
    told: list[str] = []
    return run_cluster(job(folder, script, (Host("localhost", num_workers),), Recovery(**recovery)), told.append), told


def test_workers_have_their_place_the_secret_and_the_folder(tmp_path):
    code, told = run(
        tmp_path,
        """
assert len(os.environ["POSEIDON_SECRET"]) == 32 and os.environ["POSEIDON_JOB"] == "test" and restart == 0
print(place.rank, place.size, place.local_rank, place.local_size, place.master_address, os.getcwd())
""",
    )
    assert code == 0
    assert sorted(told) == [f"rank {rank}: {rank} 2 {rank} 2 127.0.0.1 {tmp_path}" for rank in range(2)]


def test_a_killed_worker_is_named_and_the_others_are_ended(tmp_path):
    code, told = run(tmp_path, "os.kill(os.getpid(), 9) if place.rank else signal.pause()")
    assert code == 128 + signal.SIGKILL
    (line,) = told
    assert line.startswith("poseidon: error: rank 1 (host localhost, pid ")
    assert line.endswith("was ended by SIGKILL; was the memory of that host used up?")


def test_a_failure_is_tried_again_as_often_as_asked_for(tmp_path):
    script = f"sys.exit({LOST_ANOTHER}) if place.rank else os.kill(os.getpid(), 9)"
    code, told = run(tmp_path, script, max_restarts=2)
    assert code == 137
    restarts = [line for line in told if "restart" in line]
    assert restarts == [
        "poseidon: restart 1 of 2, from the newest good snapshot of this job that is left",
        "poseidon: restart 2 of 2, from the newest good snapshot of this job that is left",
        "poseidon: all 2 restarts are used up",
    ]


def test_a_restart_that_works_ends_well_and_meets_elsewhere(tmp_path):
    script = "print(restart, place.master_port, flush=True)\nif not restart: os.kill(os.getpid(), 9)"
    code, told = run(tmp_path, script, max_restarts=2)
    assert code == 0
    said = {line.partition(": ")[2] for line in told if line.startswith("rank 1: ")}
    assert {words.split()[0] for words in said} == {"0", "1"}
    assert len({words.split()[1] for words in said}) == 2


def test_a_mistake_is_not_tried_again(tmp_path):
    code, told = run(tmp_path, f"sys.exit({MISTAKE} if place.rank else {LOST_ANOTHER})", max_restarts=5)
    assert (code, told) == (MISTAKE, [])


def test_ctrl_c_is_passed_on_and_is_the_end(tmp_path):
    script = f"""
signal.signal(signal.SIGINT, lambda *_: sys.exit({LOST_ANOTHER}))
accept_signals()
if place.rank == 0: os.kill(int(open("launcher").read()), signal.SIGINT)
signal.pause()
"""
    (tmp_path / "launcher").write_text(str(os.getpid()))
    code, told = run(tmp_path, script, max_restarts=5)
    assert (code, told) == (LOST_ANOTHER, [])


def test_the_third_ctrl_c_ends_workers_that_do_not_listen(tmp_path):
    """Each one is sent when the one before has been passed on."""
    script = """
def again(*_):
    if place.rank == 0: os.kill(int(open("launcher").read()), signal.SIGINT)
signal.signal(signal.SIGINT, again)
accept_signals()
again()
while True: signal.pause()
"""
    (tmp_path / "launcher").write_text(str(os.getpid()))
    code, told = run(tmp_path, script)
    assert code == 137
    assert told == ["poseidon: interrupted again: all workers are ended"]


def test_nothing_outlives_the_agent(tmp_path):
    """A worker's child holds a pipe open; it ends when the job does."""
    os.mkfifo(tmp_path / "alive")
    reading = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    script = """
alive = os.open("alive", os.O_WRONLY)
if os.fork() == 0: signal.pause()
sys.exit(3)
"""
    code, _ = run(tmp_path, script)
    assert code == 3
    os.set_blocking(reading, True)
    assert os.read(reading, 1) == b""
    os.close(reading)


# -- hosts that come and go -------------------------------------------------------------------------------------------
TWO = (Host("localhost"), Host("127.0.0.1"))


@pytest.fixture
def agents(monkeypatch):
    """By host: the agents that were started."""
    made: dict[str, list[site.Site]] = {}
    before = site.Site.__init__

    def remember(self, host, entry):
        before(self, host, entry)
        made.setdefault(host.name, []).append(self)

    monkeypatch.setattr(site.Site, "__init__", remember)
    monkeypatch.setattr(fleet.Fleet, "_connect", _connect_here)
    return made


def _connect_here(self, host):
    made = site.Site(host, self._entry)  # all hosts are this one: nobody is to look for a way to another
    for stream in made.streams():
        self._selector.register(stream, 1, made)
    return made


class Told:
    """Lines that are shown; a thread may wait for some of them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._news = threading.Condition()

    def __call__(self, line: str) -> None:
        with self._news:
            self.lines.append(line)
            self._news.notify_all()

    def then(self, words: str, count: int, act: Callable[[], None]) -> threading.Thread:
        """Acts once so many lines have the words."""

        def wait() -> None:
            with self._news:
                assert self._news.wait_for(lambda: sum(words in line for line in self.lines) >= count, 30)
            act()

        thread = threading.Thread(target=wait)
        thread.start()
        return thread


def test_a_lost_host_is_named_and_the_rest_goes_on_until_it_returns(tmp_path, agents, monkeypatch):
    monkeypatch.setattr(controller, "GATHER_S", 0.0)  # nobody waits for the host before going on
    script = f"""
print("size", place.size if place else 1, flush=True)
signal.signal(signal.SIGUSR1, lambda *_: sys.exit({YIELDED}))
accept_signals()
if restart and place: sys.exit(0)
signal.pause()
"""
    show = Told()
    thread = show.then("size 2", 2, lambda: agents["127.0.0.1"][0]._process.kill())
    code = run_cluster(job(tmp_path, script, TWO, Recovery(1, 1)), show)
    thread.join()
    told = show.lines
    assert code == 0, told
    assert any("error: host 127.0.0.1 (rank 1) is lost: the connection to it ended" in line for line in told)
    assert "poseidon: host 127.0.0.1 is back: snapshot, and on with it" in told
    assert [line for line in told if line.startswith("rank 0: size")] == [f"rank 0: size {size}" for size in (2, 1, 2)]


def test_a_host_is_taken_back_while_another_stays_away(tmp_path, agents, monkeypatch):
    monkeypatch.setattr(controller, "GATHER_S", 0.0)
    script = f"""
print("size", place.size if place else 1, flush=True)
signal.signal(signal.SIGUSR1, lambda *_: sys.exit({YIELDED}))
accept_signals()
if restart and place: sys.exit(0)
signal.pause()
"""
    command = site._command

    def lose_two() -> None:
        monkeypatch.setattr(site, "_command", lambda host, e: ["false"] if host.name == "[::1]" else command(host, e))
        for name in ("[::1]", "127.0.0.1"):
            agents[name][0]._process.kill()

    show = Told()
    thread = show.then("size 3", 3, lose_two)
    code = run_cluster(job(tmp_path, script, (*TWO, Host("[::1]")), Recovery(1, 1)), show)
    thread.join()
    assert code == 0, show.lines
    assert "poseidon: host 127.0.0.1 is back: snapshot, and on with it" in show.lines
    sizes = [line for line in show.lines if line.startswith("rank 0: size")]
    assert sizes == [f"rank 0: size {size}" for size in (3, 1, 2)]


# -- hosts that cannot do what they are asked to ----------------------------------------------------------------------
def broken_agent(monkeypatch, patch: str) -> None:
    """Agents in which something is otherwise; `once` is true for the first that asks."""
    begin = """
import os, sys, time
from poseidon.errors import UsageError
from poseidon.run import agent
def once():
    try:
        os.close(os.open("once", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
find_port, start = agent.free_port, agent.Agent._start
"""
    words = [sys.executable, "-c", f"{begin}{patch}\nsys.exit(agent.main())"]
    monkeypatch.setattr(site, "_command", lambda host, entry: words)


NO_PORT = """
def free_port(address):
    if once() or os.path.exists("always"): raise UsageError("no port is free")
    return find_port(address)
agent.free_port = free_port
"""
NO_START = """
def refuse(self, message):
    self._answers["start"] = self._start
    if once(): raise OSError("too many open files")
    self._start(message)
before = agent.Agent.__init__
def patched(self, *words):
    before(self, *words)
    self._answers["start"] = lambda message: refuse(self, message)
agent.Agent.__init__ = patched
"""


@pytest.mark.parametrize(
    ("patch", "told"),
    [(NO_PORT, "no port is free"), (NO_START, "OSError: too many open files")],
    ids=("port", "start"),
)
def test_a_host_that_cannot_start_workers_fails_the_generation(tmp_path, monkeypatch, patch, told):
    broken_agent(monkeypatch, patch)
    code, lines = run(tmp_path, "print(restart)", max_restarts=1)
    assert code == 0, lines
    assert lines[0] == f"poseidon: error: host localhost cannot start workers: {told}"
    assert lines[1].startswith("poseidon: restart 1 of 1")
    assert sorted(lines[2:]) == ["rank 0: 1", "rank 1: 1"]


def test_it_is_the_end_without_restarts(tmp_path, monkeypatch):
    (tmp_path / "always").touch()
    broken_agent(monkeypatch, NO_PORT)
    assert run(tmp_path, "print(restart)") == (
        1,
        ["poseidon: error: host localhost cannot start workers: no port is free"],
    )


def test_a_host_that_is_lost_while_a_port_is_asked_for_fails_the_generation(tmp_path, monkeypatch):
    broken_agent(monkeypatch, "agent.free_port = lambda address: os._exit(9) if once() else find_port(address)")
    code, lines = run(tmp_path, "print(restart)", max_restarts=1)
    assert code == 0, lines
    assert lines[0].startswith("poseidon: error: host localhost is lost: the connection to it ended")
    said = [line for line in lines[2:] if not line.startswith("poseidon: waiting for hosts")]  # where it takes long
    assert sorted(said) == ["rank 0: 1", "rank 1: 1"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("patch", ["agent.main = lambda: time.sleep(60)", "agent.free_port = lambda _: time.sleep(60)"])
def test_ctrl_c_ends_a_launcher_that_waits_for_a_host(tmp_path, monkeypatch, number, patch):
    """While it connects, and while it waits for an answer."""
    patch = f"""
import threading
def interrupt(*_):
    os.kill({os.getpid()}, {int(number)})
    time.sleep(60)
{patch.replace("time.sleep(60)", "interrupt()")}
"""
    broken_agent(monkeypatch, patch)
    monkeypatch.setattr(fleet, "LEAVE_S", 0.1)
    assert run(tmp_path, "", max_restarts=3) == (128 + number, [])


def test_too_few_hosts_are_waited_for_in_vain(tmp_path, agents, monkeypatch):
    def lose_one() -> None:
        monkeypatch.setattr(site, "_command", lambda host, entry: ["false"])
        agents["127.0.0.1"][0]._process.kill()

    show = Told()
    thread = show.then("up", 2, lose_one)
    script = "print('up', flush=True)\nsignal.pause()"
    code = run_cluster(job(tmp_path, script, TWO, Recovery(1)), show)
    thread.join()
    told = show.lines
    assert code != 0
    assert any("error: 1 of 2 workers have a host; host 127.0.0.1 cannot be reached by ssh" in line for line in told)


def test_hosts_without_poseidon_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(site, "_command", lambda host, entry: ["sh", "-c", "echo no python >&2; exit 127"])
    with pytest.raises(UsageError, match=r"host localhost has no Poseidon at .*: no python; install it there"):
        run_cluster(job(tmp_path, "", (Host("localhost"),)), print)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"cannot work in the folder .*none: No such file or directory; make it"):
        run_cluster(job(tmp_path / "none", "", (Host("localhost"),)), print)


# -- inventories ------------------------------------------------------------------------------------------------------
def test_marks_tell_files_and_folders_apart(tmp_path):
    (tmp_path / "a").write_text("one")
    (tmp_path / "b").write_text("two")
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "data.mdb").write_bytes(bytes(10))
    marks = [mark_of(tmp_path / name) for name in ("a", "b", "db", "none")]
    assert len(set(marks)) == 4
    assert marks[3] == "missing"
    (tmp_path / "db" / "lock.mdb").write_bytes(b"x")
    assert mark_of(tmp_path / "db") == marks[2], "readers leave locks"
    (tmp_path / "db" / "data.mdb").write_bytes(bytes(11))
    assert mark_of(tmp_path / "db") != marks[2]


def test_differences_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net").write_text("one")
    here = take_inventory(["net"])
    assert Inventory.from_json(here.to_json()) == here
    assert differences(here, here) == []
    there = Inventory("b", "2.7.1", "0.0.1", "x", "1.0", {})
    found = differences(here, there)
    assert [line.split(",")[0] for line in found] == [
        "has Poseidon 0.0.1",
        "has PyTorch 1.0",
        "has Python 2.7.1",
        "has no net; copy it there",
    ]
    with pytest.raises(UsageError, match="expected the inventory of a host"):
        Inventory.from_json([1])
    with pytest.raises(UsageError, match="lacks 'host'"):
        Inventory.from_json({"files": {}})


# -- messages ---------------------------------------------------------------------------------------------------------
def test_messages_arrive_whole_and_words_of_others_are_text():
    inbox = Inbox()
    data = b"Welcome to node1\n" + packed("line", rank=1, text="é") + b"{broken\n[1]\n" + packed("pong")
    found = [message for byte in range(len(data)) for message in inbox.take(data[byte : byte + 1])]
    assert [message["kind"] for message in found] == ["text", "line", "text", "text", "pong"]
    assert found[1] == {"kind": "line", "rank": 1, "text": "é"}
    inbox.take(b"x" * (MAX_LINE_BYTES + 1))
    assert inbox.unread == b""


def test_what_belongs_to_a_session_stays_there():
    found = portable(
        {"PATH": "/bin", "HOME": "/root", "SSH_TTY": "x", "RANK": "1", "OMP_NUM_THREADS": "2", "TERM": "x"}
    )
    assert found == {"PATH": "/bin", "OMP_NUM_THREADS": "2"}
