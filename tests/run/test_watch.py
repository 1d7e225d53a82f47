"""Where workers stand: counted from events; who waits for whom; what a running job tells; what stuck ones report."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from poseidon.comm.events import SendStarted, UnitReady, WaitEnded, WaitStarted
from poseidon.plan import Scheme, Send
from poseidon.run import lookout
from poseidon.run.lookout import Lookout, Outlook
from poseidon.run.status import StatusFile, read_statuses, status_folder
from poseidon.run.stuck import longest_wait_s, report, waited_for, waits_text
from poseidon.run.watch import Watch, WatchedTeam
from poseidon.solver import events
from poseidon.solver.team import Alone
from poseidon.transport.base import Peer
from poseidon.transport.vitals import MOST_FIGURES, Vitals
from tests.run.jobs import built, plan_for, solver_param
from tests.solver.small import net_text, write_data

PEERS = tuple(Peer(rank, f"h{rank}", 10 + rank) for rank in range(3))


@pytest.fixture
def plan(tmp_path):
    solver, _ = built(solver_param(net_text(write_data(tmp_path))))
    return plan_for(solver, 3, Scheme.SERVER)


def test_a_watch_counts_along(plan):
    clock_s = [100.0]
    watch = Watch(lambda: clock_s[0])
    watch.follow(plan)
    order = list(plan.order)
    for _ in range(2):
        for send in order:
            watch.hear_comm(UnitReady(send.unit))
            watch.hear_comm(SendStarted(send.unit, Send(send.unit, 0, 1)))
    assert watch.vitals().num_sent == 2 * len(order)
    first = order[0].unit
    watch.hear_comm(WaitStarted(first))
    clock_s[0] = 107.0
    found = watch.vitals()
    assert found.waits_for.startswith("SERVER ")
    assert found.waited_s == 7.0
    assert found.num_needed == len(order) + 1 + max(place for place, send in enumerate(order) if send.unit == first)
    watch.hear_comm(WaitEnded(first))
    assert watch.vitals().waits_for == ""


def test_a_watch_knows_clock_and_share_of_waiting():
    clock_s = [0.0]
    watch = Watch(lambda: clock_s[0])
    watch.hear_solver(events.Restored("x", 40, exact=True))
    loss = torch.tensor(0.5)
    for iteration in range(40, 200):
        watch.hear_comm(WaitStarted(0))
        clock_s[0] += 0.25
        watch.hear_comm(WaitEnded(0))
        clock_s[0] += 0.75
        watch.hear_solver(events.IterationDone(iteration, loss, loss, 0.1))
    found = watch.vitals()
    assert found.clock == 200
    assert found.figures["loss"] == 0.5
    assert found.figures["iteration_s"] == pytest.approx(1.0)
    assert found.figures["wait_share"] == pytest.approx(0.25, abs=0.01)


# -- vitals -----------------------------------------------------------------------------------------------------------
def test_vitals_travel_and_nonsense_is_refused():
    own = Vitals(7, "RING fc/0", 3, "RING fc/0", 4, 1.5, {"loss": 0.25})
    assert Vitals.from_json(json.loads(json.dumps(own.to_json()))) == own
    for nonsense in (None, [], {}, {"clock": 1}, {**own.to_json(), "clock": "x"}, {**own.to_json(), "figures": 3}):
        assert Vitals.from_json(nonsense) is None
    long = Vitals.from_json({**own.to_json(), "unit": "u" * 9999, "figures": {str(n): n for n in range(99)}})
    assert (len(long.unit), len(long.figures)) == (200, MOST_FIGURES)
    assert str(own) == "it was at clock 7, its last unit was RING fc/0"


# -- stuck ------------------------------------------------------------------------------------------------------------
STUCK = {
    0: Vitals(5, "RING a", 12, "RING b", 13, 31.0),
    1: Vitals(5, "RING b", 13, "RING b", 13, 33.0),
    2: Vitals(4, "RING z", 10),
}


def test_who_waits_for_whom():
    assert waited_for(0, STUCK) == [2]
    assert waited_for(1, STUCK) == [0, 2]
    assert longest_wait_s(STUCK) == 33.0
    lines = waits_text(PEERS, STUCK).splitlines()
    assert lines[0] == "rank 0 (host h0, pid 10): clock 5, waits for RING b since 31 s, for rank 2"
    assert lines[2] == "rank 2 (host h2, pid 12): clock 4, computes or reads data; its last unit was RING z"


def test_if_all_have_sent_it_is_the_network():
    sent = {rank: Vitals(5, "RING b", 13, "RING b", 13, 31.0) for rank in range(3)}
    assert "for the network: all workers have sent their part" in waits_text(PEERS, sent)


def test_a_report_has_stacks_and_names_who_is_silent():
    text = report(PEERS, STUCK, {0: "in forward", 1: "in wait"})
    assert "an exchange has taken 33 s" in text
    assert "---- what the threads of rank 1 (host h1, pid 11) do\nin wait" in text
    assert "no answer from rank 2 (host h2, pid 12)" in text


class Watched:
    peers = PEERS

    def __init__(self, vitals) -> None:
        self.now = vitals
        self.lost = None

    def vitals(self):
        return self.now

    def ask_stacks(self, timeout_s):
        return {0: "stack of 0"}

    def declare_lost(self, ranks, how):
        self.lost = (ranks, how)


def test_a_lookout_reports_once_and_shows_status(tmp_path, monkeypatch):
    monkeypatch.setattr(lookout, "LOOK_S", 0.01)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    told, heard = [], threading.Event()
    outlook = Outlook({"job": "j/1", "max_iter": 9}, str(tmp_path / "run"), report_s=30.0, hang_s=300.0)

    def tell(lines):
        told.append(list(lines))
        heard.set()

    with Lookout(Watched(STUCK), outlook, tell):
        assert heard.wait(30)
        for _ in range(1000):
            found = read_statuses(status_folder(os.environ))
            if found:
                break
        threading.Event().wait(0.1)
    (status,) = found
    assert (status["job"], status["max_iter"], status["pid"]) == ("j/1", 9, os.getpid())
    assert [worker["host"] for worker in status["workers"]] == ["h0", "h1", "h2"]
    assert len(told) == 1
    assert told[0][0] == f"an exchange has taken 33 s; the stacks of all workers are in {tmp_path}/run_stuck_4.txt"
    assert "stack of 0" in (tmp_path / "run_stuck_4.txt").read_text()
    assert read_statuses(status_folder(os.environ)) == [], "it goes with its job"


def test_a_lookout_declares_lost_who_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(lookout, "LOOK_S", 0.01)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    vitals = {rank: replace(entry, figures={"training_s": 1.0}) for rank, entry in STUCK.items()}
    watched = Watched(vitals)
    with Lookout(watched, Outlook({}, str(tmp_path / "run"), report_s=90.0, hang_s=0.05), lambda lines: None) as made:
        made._thread.join(30)
    assert watched.lost == ((2,), "it has made no progress for 0.05 s while all others wait for it, so it hangs")


def test_a_watch_tells_whether_its_worker_moves(plan):
    watch = Watch()
    assert "training_s" not in watch.vitals().figures, "it has not begun"
    watch.follow(plan)
    before = watch.vitals().figures["training_s"]
    asked = []
    thread = threading.Thread(target=lambda: asked.append(watch.vitals().figures["training_s"]))
    sum(range(2_000_000))
    thread.start()
    thread.join()
    assert asked[0] > before, "others may ask"
    watch.hear_solver(events.SnapshotStarted(1, Path("m"), Path("s"), False))
    assert watch.vitals().figures["saving"] == 1.0
    watch.hear_solver(events.SnapshotFailed(1, "full"))
    assert watch.vitals().figures["saving"] == 0.0


# -- status -----------------------------------------------------------------------------------------------------------
def test_dead_jobs_and_nonsense_are_passed_over(tmp_path):
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    folder = status_folder(environ)
    assert folder.stat().st_mode & 0o777 == 0o700
    StatusFile(folder, "mine").write({"job": "a"})
    (folder / "dead.json").write_text(json.dumps({"pid": 2**22 + 5}))
    (folder / "odd.json").write_text("[1]")
    (folder / "broken.json").write_text("{")
    assert [status["job"] for status in read_statuses(folder)] == ["a"]
    assert not (folder / "dead.json").exists()


def test_a_folder_that_others_can_enter_is_not_used(tmp_path):
    (tmp_path / "poseidon").mkdir(mode=0o777)
    (tmp_path / "poseidon").chmod(0o777)
    assert status_folder({"XDG_RUNTIME_DIR": str(tmp_path)}) is None
    StatusFile(None, "x").write({})
    assert read_statuses(None) == []


def test_meetings_are_waited_for_by_those_who_came():
    """All come to meetings in one order: who has come to fewer is waited for."""
    vitals = {
        0: Vitals(5, "RING b", 13, "the mean of what is shown", 0, 31.0, {"met": 7}),
        1: Vitals(5, "RING b", 13, "", 0, 0.0, {"met": 6}),
        2: Vitals(5, "RING b", 13, "the mean of what is shown", 0, 30.0, {"met": 7}),
    }
    assert waited_for(0, vitals) == [1]
    assert waited_for(2, vitals) == [1]


def test_a_watched_team_counts_its_meetings():
    watch = Watch()
    seen = []

    class Slow(Alone):
        def meet(self):
            seen.append(watch.vitals())

    team = WatchedTeam(Slow(), watch)
    team.meet()
    assert team.mean([torch.ones(1)]) == [torch.ones(1)]
    assert (seen[0].waits_for, seen[0].figures["met"]) == ("a meeting of all", 1.0)
    assert (watch.vitals().waits_for, watch.vitals().figures["met"]) == ("", 2.0)
