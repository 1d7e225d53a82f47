"""When a Send may start: in order, when ready, with room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poseidon.plan import (
    Cluster,
    FactorShape,
    Holders,
    LayerProfile,
    NetProfile,
    ParamProfile,
    PlanRequest,
    Scheme,
    Send,
    Turns,
    make_plan,
    patience_s,
)
from poseidon.plan.turns import MOST_LATE, PATIENCE, leaves_early

A, B, REST_OF_A = Send(0, 0, 5), Send(1, 0, 3), Send(0, 5, 9)


def started(turns: Turns) -> Send | None:
    send = turns.next_send()
    if send is not None:
        turns.start()
    return send


def test_the_order_is_kept_although_another_is_ready_first():
    turns = Turns([A, B, REST_OF_A], in_flight=4)
    turns.ready(1)
    assert started(turns) is None
    turns.ready(0)
    assert [started(turns) for _ in range(4)] == [A, B, REST_OF_A, None]


def test_no_more_than_so_many_are_on_their_way():
    turns = Turns([A, B, REST_OF_A], in_flight=2)
    turns.ready(0)
    turns.ready(1)
    assert [started(turns) for _ in range(3)] == [A, B, None]
    turns.left()
    assert [started(turns) for _ in range(2)] == [REST_OF_A, None]


def test_the_next_round_waits_for_its_own_gradients():
    turns = Turns([A, B], in_flight=4)
    for unit in (0, 1):
        turns.ready(unit)
    assert [started(turns) for _ in range(3)] == [A, B, None]
    turns.ready(1)
    assert started(turns) is None
    turns.ready(0)
    assert [started(turns) for _ in range(3)] == [A, B, None]


def test_a_unit_is_done_with_its_last_send():
    turns = Turns([A, B, REST_OF_A], in_flight=4)
    for _ in range(2):
        turns.ready(0)
        turns.ready(1)
        assert not turns.applied(0)
        assert turns.applied(1)
        assert turns.applied(0)


def test_nothing_to_send():
    assert Turns([], in_flight=1).next_send() is None


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_any_timing_gives_the_same_order(units, in_flight, random):
    """Gradients come and Sends end in any order: what starts is the plan's order, round after round."""
    reached = dict.fromkeys(units, 0)
    order = []
    for unit in units:
        order.append(Send(unit, reached[unit], reached[unit] + 1))
        reached[unit] += 1
    turns, seen, on_way = Turns(order, in_flight), [], 0
    waiting = dict.fromkeys(reached, 2)
    while len(seen) < 2 * len(order):
        found = started(turns)
        if found is not None:
            seen.append(found)
            on_way += 1
            assert on_way <= in_flight
            continue
        moves = [unit for unit, left in waiting.items() if left] + ["end"] * (on_way > 0)
        move = random.choice(moves)
        if move == "end":
            turns.left()
            on_way -= 1
        else:
            waiting[move] -= 1
            turns.ready(move)
    assert seen == order * 2


def test_a_send_that_takes_too_long_loses_its_place():
    holders = Holders()
    first, second = holders.take(5.0), holders.take(7.0)
    assert holders.next_due_s == 5.0
    assert holders.give_up(4.9) == 0
    assert holders.give_up(5.0) == 1
    assert holders.next_due_s == 7.0
    assert not holders.leave(first)  # its place is gone already
    assert holders.leave(second)
    assert not holders.leave(second)
    assert holders.next_due_s is None


def test_so_many_may_be_late_and_no_more():
    holders = Holders()
    tickets = [holders.take(1.0) for _ in range(MOST_LATE + 2)]
    assert holders.give_up(2.0) == MOST_LATE
    assert holders.give_up(2.0) == 0
    assert holders.next_due_s is None
    assert not holders.leave(tickets[0])
    assert holders.next_due_s == 1.0
    assert holders.give_up(2.0) == 1


@pytest.mark.parametrize(
    ("scheme", "wire", "expected"),
    [
        (Scheme.RING, "fp32", True),
        (Scheme.RING, "bf16", False),
        (Scheme.SERVER, "fp32", False),
        (Scheme.FACTORS, "bf16", True),
        (Scheme.FACTOR_SERVER, "fp32", False),
    ],
)
def test_who_makes_room_before_the_sum_is_made(scheme, wire, expected):
    """Schemes with owners, and a narrow ring, whose owners sum, still have to hand out what is new."""
    weight = ParamProfile("fc/0", (40, 30), factors=FactorShape(4, 40, 30))
    profile = NetProfile((LayerProfile("fc", 0.1, 0.1, ("fc/0",)),), (weight,))
    plan = make_plan(profile, Cluster((1, 1), 1e9), PlanRequest(scheme=scheme, wire=wire, among=(scheme,)))
    assert all(leaves_early(plan, send, 4) is expected for send in plan.order)
    assert patience_s(plan, plan.order[0]) >= 0
    assert sum(patience_s(plan, send) for send in plan.order) == pytest.approx(PATIENCE * plan.units[0].seconds)
