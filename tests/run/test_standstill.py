"""Who hangs is told from who is slow, tests, saves or has not begun, by a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from poseidon.run.standstill import ASLEEP_S, Standstill
from poseidon.transport.vitals import Vitals

LIMIT_S = 60.0
WAITS = Vitals(5, "RING b", 13, "RING b", 14, 0.0, {"training_s": 9.0, "met": 4.0})
HANGS = Vitals(5, "RING a", 12, "", 0, 0.0, {"training_s": 8.0, "met": 4.0})

At = Callable[[float], dict[int, Vitals]]


def looks(at: At, until_s: float, step_s: float = 1.0) -> list[tuple[float, tuple[int, ...]]]:
    """When somebody was found to hang, and who, while looking until a time."""
    clock_s = [0.0]
    standstill, found = Standstill(LIMIT_S, lambda: clock_s[0]), []
    while clock_s[0] < until_s:
        ranks = standstill.look(at(clock_s[0]))
        if ranks:
            found.append((clock_s[0], ranks))
        clock_s[0] += step_s
    return found


def waiting(now_s: float, **changes: object) -> Vitals:
    return replace(WAITS, waited_s=now_s, **changes)


def figures(vitals: Vitals, **changes: float) -> Vitals:
    return replace(vitals, figures={**vitals.figures, **changes})


def test_who_stands_still_while_all_others_wait_hangs():
    found = looks(lambda now_s: {0: waiting(now_s), 1: HANGS, 2: waiting(now_s)}, 2 * LIMIT_S)
    assert found[0] == (LIMIT_S + 1, (1,))
    assert {ranks for _, ranks in found} == {(1,)}


def test_two_may_hang_and_rank_0_too():
    found = looks(lambda now_s: {0: HANGS, 1: HANGS, 2: waiting(now_s)}, 2 * LIMIT_S)
    assert found[0] == (LIMIT_S + 1, (0, 1))


def test_who_does_not_come_to_a_meeting_hangs():
    met = {"training_s": 9.0, "met": 5.0}
    found = looks(lambda s: {0: Vitals(5, "x", 12, "a meeting of all", 0, s, met), 1: HANGS}, 2 * LIMIT_S)
    assert found[0][1] == (1,)


@pytest.mark.parametrize(
    "slow",
    [
        lambda s: figures(HANGS, training_s=8.0 + 0.01 * s),
        lambda s: replace(HANGS, clock=int(s) // 50),
        lambda s: replace(HANGS, num_sent=int(s) // 50 - 20),
        lambda s: figures(HANGS, met=float(int(s) // 50)),
    ],
    ids=("computes, in a test say", "finishes iterations", "sends", "meets"),
)
def test_who_moves_does_not_hang(slow):
    assert looks(lambda s: {0: waiting(s), 1: slow(s)}, 20 * LIMIT_S) == []


def test_looking_again_and_again_is_no_motion():
    found = looks(lambda s: {0: waiting(s), 1: figures(HANGS, training_s=8.0 + 0.0005 * s)}, 2 * LIMIT_S)
    assert found[0][1] == (1,)


@pytest.mark.parametrize(
    "at",
    [
        lambda s: {0: waiting(s), 1: HANGS, 2: figures(replace(HANGS, num_sent=20), training_s=s)},
        lambda s: {0: waiting(s % 50), 1: HANGS},
        lambda s: {0: waiting(s), 1: waiting(s)},
        lambda s: {0: HANGS, 1: HANGS},
        lambda s: {0: replace(waiting(s), num_needed=10), 1: HANGS},
        lambda s: {0: waiting(s), 1: Vitals()},
        lambda s: {},
    ],
    ids=(
        "another one computes",
        "others wait for a while only",
        "all wait for the network",
        "nobody waits",
        "nobody waits for it",
        "it has not begun",
        "nobody is there",
    ),
)
def test_nobody_hangs(at):
    assert looks(at, 10 * LIMIT_S) == []


def test_who_only_serves_waits_for_nobody():
    found = looks(lambda s: {0: waiting(s), 1: HANGS, 2: Vitals()}, 2 * LIMIT_S)
    assert found[0][1] == (1,)


def test_who_may_be_saving_has_more_time():
    found = looks(lambda s: {0: figures(HANGS, saving=1.0), 1: waiting(s)}, 4 * LIMIT_S)
    assert found[0] == (3 * LIMIT_S + 1, (0,))
    found = looks(lambda s: {0: waiting(s), 1: figures(HANGS, saving=1.0)}, 4 * LIMIT_S)
    assert found[0] == (LIMIT_S + 1, (1,)), "rank 0 writes"


def test_who_was_asleep_judges_nobody():
    assert looks(lambda s: {0: waiting(s), 1: HANGS}, 20 * LIMIT_S, step_s=ASLEEP_S + 1) == []
