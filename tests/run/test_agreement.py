"""What is asked of one worker is done by all, in the same iteration; and how rarely they ask each other."""

from __future__ import annotations

import pytest

from poseidon.run.agreement import Agreement
from poseidon.run.distribute import DistributeOptions
from poseidon.run.roundtable import Roundtable
from poseidon.solver import Action, events
from poseidon.transport.inproc import run_workers
from tests.run.jobs import in_team, solver_param
from tests.solver.small import net_text

NONE, SNAPSHOT, STOP = Action.NONE, Action.SNAPSHOT, Action.STOP


@pytest.mark.parametrize("rank", [0, 2])
def test_a_stop_asked_of_one_worker_stops_all(listing, tmp_path, rank):
    text = f'max_iter: 50 snapshot_after_train: true snapshot_prefix: "{tmp_path / "s"}"'

    def act(worker):
        solver = worker.solver
        is_asked = worker.transport.rank == rank
        solver.action = lambda: STOP if is_asked and solver.iter == 4 else NONE
        solver.solve()
        return solver.iter, worker.heard.of(events.SnapshotWritten)[-1].iteration, worker.heard.all[-1]

    by_rank = in_team(3, solver_param(net_text(listing, batch=2), text), act)
    assert by_rank == [(5, 5, events.SolvingDone(5, stopped_early=True))] * 3


def test_a_snapshot_asked_of_one_worker_is_one_snapshot(listing, tmp_path):
    def act(worker):
        solver = worker.solver
        is_asked = worker.transport.rank == 1
        solver.action = lambda: SNAPSHOT if is_asked and solver.iter == 2 else NONE
        solver.step(6)
        return [event.iteration for event in worker.heard.of(events.SnapshotWritten)]

    param = solver_param(net_text(listing, batch=2), f'snapshot_prefix: "{tmp_path / "s"}"')
    assert in_team(2, param, act) == [[3], [3]]
    assert sorted(path.name for path in tmp_path.glob("s_iter_*.solverstate")) == ["s_iter_3.solverstate"]


# -- votes ------------------------------------------------------------------------------------------------------------
def decisions(requests_by_rank, seconds, *, every_s=0.0, testing=lambda turn: False):
    """What each worker is told after each turn, and in which turns there was a vote. `seconds` per turn, by rank."""

    def work(transport):
        table = Roundtable(transport)
        votes = []
        turn = 0

        def now():
            return turn * seconds[transport.rank]

        start_sum = table.start_sum

        def counted(tensor):
            votes.append(turn)
            return start_sum(tensor)

        table.start_sum = counted
        agreement = Agreement(table, every_s, now)
        told = []
        for request in requests_by_rank[transport.rank]:
            turn += 1
            told.append(agreement.turn(request, testing=testing(turn)))
        agreement.end()
        return told, votes

    return run_workers(len(requests_by_rank), work)


def test_a_request_is_acted_upon_one_turn_later_by_all():
    requests = [[NONE] * 6, [NONE, SNAPSHOT, NONE, STOP, NONE, NONE]]
    (told, _), (told_too, _) = decisions(requests, [1.0, 1.0])
    assert told == told_too == [NONE, NONE, SNAPSHOT, NONE, STOP, NONE]


def test_a_stop_outranks_a_snapshot():
    requests = [[SNAPSHOT, NONE, NONE], [STOP, NONE, NONE]]
    assert [told for told, _ in decisions(requests, [1.0, 1.0])] == [[NONE, STOP, NONE]] * 2


@pytest.mark.parametrize(("seconds", "late"), [(10.0, 1), (0.1, 9)])
def test_a_signal_that_reaches_one_worker_later_is_no_second_snapshot(seconds, late):
    """One turn later, however long turns are; or less than a second, however short."""
    of_two = [NONE] * 40
    of_two[2 + late] = SNAPSHOT  # the others' vote is decided in the third turn
    requests = [[NONE, SNAPSHOT, *[NONE] * 38], of_two]
    for told, _ in decisions(requests, [seconds] * 2):
        assert [turn for turn, action in enumerate(told, 1) if action is SNAPSHOT] == [3]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_second_signal_is_a_second_snapshot(rank):
    """To the worker that has had the first at once; to another one after a second."""
    requests = [[NONE, SNAPSHOT, *[NONE] * 38], [NONE] * 40]
    turn = 4 if rank == 0 else 14
    requests[rank][turn - 1] = SNAPSHOT
    for told, _ in decisions(requests, [0.1] * 2):
        assert [at for at, action in enumerate(told, 1) if action is SNAPSHOT] == [3, turn + 1]


def test_votes_come_about_as_often_as_asked():
    """Turns of 0.1 s and 0.3 s on two workers, 0.2 s on average: every tenth turn is every 2 s."""
    (_, votes), (_, votes_too) = decisions([[NONE] * 60] * 2, [0.1, 0.3], every_s=2.0)
    assert votes == votes_too
    assert votes[:4] == [1, 5, 15, 25]
    assert votes[-1] - votes[-2] == 10


def test_a_request_between_votes_waits_for_the_next():
    requests = [[NONE] * 60, [STOP if turn == 17 else NONE for turn in range(1, 61)]]
    (told, votes), _ = decisions(requests, [0.1, 0.3], every_s=2.0)
    assert 17 < min(vote for vote in votes if vote >= 17) == 25
    assert [turn for turn, action in enumerate(told, 1) if action is STOP] == [26]


def test_rounds_of_a_test_are_measured_by_themselves():
    """Quick rounds must not make the pauses between slow iterations long."""
    (_, votes), _ = decisions([[NONE] * 20] * 2, [0.2, 0.2], every_s=2.0, testing=lambda turn: 9 <= turn < 12)
    assert votes[:2] == [1, 5]
    assert {9, 12} <= set(votes)  # the first of each kind


def test_votes_between_turns_that_take_no_time():
    (_, votes), _ = decisions([[NONE] * 5] * 2, [0.0, 0.0], every_s=2.0)
    assert votes == [1, 2, 3, 4, 5]


def test_training_votes_rarely_by_default(listing):
    """One vote of 32 bytes in an iteration, at most; a second's worth of iterations apart in the end."""

    def act(worker):
        sent = []
        for _ in range(40):
            before = worker.distribution._table._group.bytes_sent
            worker.solver.step(1)
            sent.append(worker.distribution._table._group.bytes_sent - before)
        return sent

    sent = in_team(2, solver_param(net_text(listing, batch=2)), act, options=DistributeOptions(agree_s=1e9))[0]
    assert set(sent) == {0, 32}
    assert sum(1 for num_bytes in sent if num_bytes) == 3  # turns 1, 5 and 21
