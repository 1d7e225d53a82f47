"""Statistics of workers and clocks: times from an injected clock, bytes against the plan, files read by others."""

from __future__ import annotations

import json
import threading

import pytest
import yaml

from poseidon.comm.events import UnitDone, WaitEnded, WaitStarted
from poseidon.errors import UsageError
from poseidon.plan import Scheme
from poseidon.run.meter import ClockFigures, Counters, Meter
from poseidon.run.options import DistributeOptions, check_stats_path
from poseidon.solver import events
from tests.run.jobs import built, in_team, plan_for, solver_param
from tests.solver.small import net_text

FIELDS = ["worker", "clock", "compute_s", "blocked_s", "sent_bytes", "received_bytes", "staleness"]


class Hand:
    """A clock that is moved by hand, and counters."""

    def __init__(self):
        self.now_s = 100.0
        self.counters = Counters()

    def meter(self):
        return Meter(lambda: self.counters, lambda: self.now_s)


def test_an_iteration_is_compute_and_blocked_time():
    hand = Hand()
    meter = hand.meter()
    hand.now_s += 50  # a test between iterations counts for none
    meter.on_start()
    hand.now_s += 2
    meter.hear_comm(WaitStarted(0))
    hand.now_s += 0.5
    meter.hear_comm(WaitEnded(0))
    meter.hear_comm(UnitDone(0))
    hand.now_s += 1
    hand.counters = Counters(waited_s=0.25, sent_bytes=700, received_bytes=300, staleness=2)
    assert meter.done(1) == ClockFigures(1, 2.75, 0.75, 700, 300, 2)
    hand.now_s += 9
    hand.counters = Counters(waited_s=8.25, sent_bytes=750, received_bytes=300, staleness=0)
    meter.on_start()
    hand.now_s += 1
    assert meter.done(2) == ClockFigures(2, 1.0, 0.0, 50, 0, 0)
    assert meter.last == ClockFigures(2, 1.0, 0.0, 50, 0, 0)


def stats_of(listing, path, text="", num_iterations=6):
    param = solver_param(net_text(listing, batch=2), text)
    options = DistributeOptions(agree_s=0, stats=str(path))

    def act(worker):
        worker.solver.step(num_iterations)

    in_team(3, param, act, options=options, scheme=Scheme.RING)
    return param


def check_rows(rows, num_iterations=6):
    assert all(list(row) == FIELDS for row in rows)
    assert sorted((row["clock"], row["worker"]) for row in rows) == [
        (clock, worker) for clock in range(1, num_iterations + 1) for worker in range(3)
    ]
    assert all(row["compute_s"] > 0 and row["blocked_s"] >= 0 and row["staleness"] == 0 for row in rows)


def test_json_lines_with_every_worker_and_clock(listing, tmp_path):
    path = tmp_path / "run.jsonl"
    param = stats_of(listing, path, "test_interval: 2 test_iter: 1")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    check_rows(rows)
    # All of it is in the file: what exchanges sent, up to what was still on its way at the last clock.
    plan = plan_for(built(param)[0], 3, Scheme.RING)
    for rank in range(3):
        sent = sum(row["sent_bytes"] for row in rows if row["worker"] == rank)
        assert 5 * plan.bytes_sent * 0.9 <= sent <= 6 * plan.bytes_sent * 1.1


def test_yaml_that_others_read(listing, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("what was there before is replaced")
    stats_of(listing, path)
    rows = yaml.safe_load(path.read_text())
    check_rows(rows)
    assert all(isinstance(row["blocked_s"], float) for row in rows)


def test_a_failed_job_leaves_what_rank_0_knows(listing, tmp_path):
    path = tmp_path / "run.jsonl"

    def act(worker):
        worker.solver.step(3)
        if worker.transport.rank == 0:
            raise ValueError("the cat sat on the keyboard")

    with pytest.raises(ValueError, match="the cat"):
        in_team(2, solver_param(net_text(listing, batch=2)), act, options=DistributeOptions(agree_s=0, stats=str(path)))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["worker"], row["clock"]) for row in rows] == [(0, 1), (0, 2), (0, 3)]


@pytest.mark.parametrize("consistency", ["ssp", "ssp-push", "ssp-managed"])
def test_staleness_is_what_every_clock_has_seen(listing, tmp_path, consistency):
    """Worker 0 holds clock 0 up until the others stand at the bound: they have read values of 0, 1, 2 clocks before,
    and itself finds what all have done meanwhile."""
    path, staleness = tmp_path / "run.jsonl", 2
    at_bound, held = threading.Barrier(3), []
    param = solver_param(net_text(listing, batch=2))
    options = DistributeOptions(agree_s=0, stats=str(path), staleness=staleness, consistency=consistency)

    def act(worker):
        solver = worker.solver
        run = solver.run

        def waits(*, backward):
            if worker.transport.rank == 0 and not held:
                held.append(True)
                at_bound.wait(30)
            return run(backward=backward)

        def hear(event):
            if isinstance(event, events.IterationDone) and worker.transport.rank and event.iteration == staleness:
                at_bound.wait(30)

        solver.run = waits
        solver.listeners.append(hear)
        solver.step(6)

    in_team(3, param, act, options=options, scheme=Scheme.SERVER)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 18
    seen = {(row["worker"], row["clock"]): row["staleness"] for row in rows}
    assert [seen[worker, clock] for worker in (1, 2) for clock in (1, 2, 3)] == [0, 1, 2, 0, 1, 2]
    assert all(0 <= found <= staleness for found in seen.values())
    for worker in range(3):
        assert sum(row["sent_bytes"] for row in rows if row["worker"] == worker) > 0


@pytest.mark.parametrize("path", ["stats", "stats.txt", "stats.yam"])
def test_other_formats_are_refused(path):
    with pytest.raises(UsageError, match=r"must end in \.jsonl or \.yaml, got"):
        check_stats_path(path)


def test_files_that_cannot_be_written_are_refused_at_the_start(listing, tmp_path):
    with pytest.raises(UsageError, match=r"--stats: cannot write .*nowhere/run.yaml: No such file or directory"):
        stats_of(listing, tmp_path / "nowhere" / "run.yaml")
