"""When a Send may start: in order, when ready, with room. And that no timing leads to a deadlock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poseidon.plan import (
    Cluster,
    FactorShape,
    Lane,
    LayerProfile,
    NetProfile,
    ParamProfile,
    PlanRequest,
    Scheme,
    Send,
    Ticket,
    Turns,
    make_plan,
    patience_s,
)
from poseidon.plan.turns import MOST_LATE, PATIENCE, Pulls, Pushes

FOR_EVER = float("inf")
A, B, REST_OF_A = Send(0, 0, 5), Send(1, 0, 3), Send(0, 5, 9)


def started(lane: Lane, now_s: float = 0.0, due_s: float = FOR_EVER) -> tuple[int, Ticket] | None:
    """The place of what may start, which then does."""
    place = lane.next_place(now_s)
    return None if place is None else (place, lane.start(place, due_s))


def places(lane: Lane, number: int) -> list[int | None]:
    found = [started(lane) for _ in range(number)]
    return [None if entry is None else entry[0] for entry in found]


# -- pushes -----------------------------------------------------------------------------------------------------------
def test_the_order_is_kept_although_another_is_ready_first():
    lane = Pushes([A, B, REST_OF_A], in_flight=4)
    lane.ready(1)
    assert places(lane, 1) == [None]
    lane.ready(0)
    assert places(lane, 4) == [0, 1, 2, None]


def test_only_whose_turn_it_is_wakes_who_starts():
    lane = Pushes([B, A, REST_OF_A], in_flight=1)
    assert not lane.ready(0)
    assert lane.ready(1)
    ticket = started(lane)[1]
    assert lane.has_ready(0.0)  # it waits for room alone
    assert lane.leave(ticket)
    assert not lane.leave(ticket)
    assert places(lane, 1) == [1]
    assert not lane.ready(1)  # of the next round: the rest of another unit comes first


def test_nobody_waits_for_a_late_push_while_nothing_else_is_ready():
    """A time in the past would make whoever waits until then turn round and round."""
    lane = Pushes([A, B], in_flight=1)
    lane.ready(0)
    assert started(lane, due_s=1.0) is not None
    assert lane.next_place(2.0) is None
    assert lane.next_due_s(2.0) is None
    lane.ready(1)
    assert lane.next_place(2.0) == 1


def test_no_more_than_so_many_are_on_their_way():
    lane = Pushes([A, B, REST_OF_A], in_flight=2)
    lane.ready(0)
    lane.ready(1)
    first, second, third = (started(lane) for _ in range(3))
    assert first is not None
    assert second is not None
    assert third is None
    lane.leave(first[1])
    lane.leave(first[1])  # is said twice of some
    assert places(lane, 2) == [2, None]


def test_the_next_round_waits_for_its_own_gradients():
    lane = Pushes([A, B], in_flight=4)
    lane.ready(0)
    lane.ready(1)
    assert places(lane, 3) == [0, 1, None]
    lane.ready(1)
    assert places(lane, 1) == [None]
    lane.ready(0)
    assert places(lane, 3) == [0, 1, None]


def test_nothing_to_send():
    assert Pushes([], in_flight=1).next_place(0.0) is None
    assert Pulls([], in_flight=1).next_place(0.0) is None


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(1, 4), st.randoms(use_true_random=False))
def test_any_timing_gives_the_same_order(units, in_flight, random):
    """Gradients come and pushes end in any order: what starts is the plan's order, round after round."""
    lane = Pushes([Send(unit, place, place + 1) for place, unit in enumerate(units)], in_flight)
    seen: list[int] = []
    on_way: list[Ticket] = []
    coming = dict.fromkeys(units, 2)
    while len(seen) < 2 * len(units):
        found = started(lane)
        if found is not None:
            seen.append(found[0])
            on_way.append(found[1])
            assert len(on_way) <= in_flight
            continue
        move = random.choice([*(unit for unit, left in coming.items() if left), *(["end"] if on_way else [])])
        if move == "end":
            lane.leave(on_way.pop(random.randrange(len(on_way))))
        else:
            coming[move] -= 1
            lane.ready(move)
    assert seen == list(range(len(units))) * 2


def test_a_unit_is_done_with_its_last_send():
    turns = Turns([A, B, REST_OF_A], 4, [False, False])
    for _ in range(2):
        turns.ready(0)
        turns.ready(1)
        assert not turns.applied(0)
        assert turns.applied(1)
        assert turns.applied(0)


# -- pulls ------------------------------------------------------------------------------------------------------------
def test_values_are_handed_out_in_order():
    lane = Pulls([1, 3, 7], in_flight=1)
    for _ in range(2):  # rounds
        for place in (7, 1, 3):
            lane.ready(place, FOR_EVER)
        for place in (1, 3, 7):
            found = started(lane)
            assert found is not None
            assert found[0] == place
            assert places(lane, 1) == [None]
            lane.leave(found[1])


def test_values_wait_so_long_for_those_before_them_and_no_longer():
    lane = Pulls([1, 3, 7], in_flight=9)
    lane.ready(7, 5.0)
    lane.ready(3, 6.0)
    assert lane.next_place(4.9) is None
    assert lane.next_due_s(0.0) == 5.0
    assert lane.next_place(5.0) == 7
    lane.start(7, FOR_EVER)
    assert lane.next_place(5.0) is None
    assert lane.next_due_s(5.0) == 6.0
    lane.ready(1, FOR_EVER)
    assert places(lane, 3) == [1, 3, None]
    for place in (1, 3, 7):
        lane.ready(place, FOR_EVER)
    assert places(lane, 3) == [1, 3, 7]  # in the next round order counts again


def test_pushes_and_pulls_have_places_of_their_own():
    turns = Turns([A, B], 1, [False, True])
    turns.ready(0)
    turns.pulls.ready(1, FOR_EVER)
    assert places(turns.pushes, 1) == [0]
    assert places(turns.pulls, 1) == [1]


@pytest.mark.parametrize(("in_flight", "expected"), [(1, 2), (2, 2), (4, 4)])
def test_two_are_pulled_at_a_time_at_least(in_flight, expected):
    turns = Turns([Send(unit, 0, 1) for unit in range(6)], in_flight, [True] * 6)
    for place in range(6):
        turns.ready(place)
        turns.pulls.ready(place, FOR_EVER)
    assert places(turns.pushes, 6) == [*range(in_flight), *[None] * (6 - in_flight)]
    assert places(turns.pulls, 6) == [*range(expected), *[None] * (6 - expected)]


# -- patience ---------------------------------------------------------------------------------------------------------
def test_what_takes_too_long_loses_its_place():
    lane = Pulls([0, 1, 2], in_flight=1)
    lane.ready(0, FOR_EVER)
    lane.ready(1, FOR_EVER)
    first = started(lane, due_s=5.0)
    assert first is not None
    assert lane.next_due_s(0.0) == 5.0
    assert started(lane, now_s=4.9) is None
    second = started(lane, now_s=5.0, due_s=7.0)
    assert second is not None
    assert lane.next_due_s(5.0) == 7.0
    lane.leave(first[1])  # its place was another's already
    lane.ready(2, FOR_EVER)
    assert started(lane, now_s=6.0) is None
    lane.leave(second[1])
    assert started(lane, now_s=6.0) is not None


def test_of_pushes_so_many_may_be_late_and_no_more():
    lane = Pushes([Send(unit, 0, 1) for unit in range(MOST_LATE + 3)], in_flight=1)
    for unit in range(MOST_LATE + 3):
        lane.ready(unit)
    found = [started(lane, now_s=2.0, due_s=1.0) for _ in range(MOST_LATE + 2)]
    assert found[MOST_LATE] is not None
    assert found[MOST_LATE + 1] is None
    assert lane.next_due_s(0.0) is None
    assert found[0] is not None
    lane.leave(found[0][1])
    assert lane.next_due_s(0.0) == 1.0
    assert started(lane, now_s=2.0) is not None


def test_of_pulls_any_number_may_be_late():
    lane = Pulls(range(50), in_flight=1)
    for place in range(50):
        lane.ready(place, FOR_EVER)
    assert [started(lane, now_s=2.0, due_s=1.0) is not None for _ in range(50)] == [True] * 50


@pytest.mark.parametrize("scheme", [Scheme.RING, Scheme.SERVER, Scheme.FACTORS, Scheme.FACTOR_SERVER])
def test_patience_goes_by_what_a_send_should_take(scheme):
    weight = ParamProfile("fc/0", (40, 30), factors=FactorShape(4, 40, 30))
    profile = NetProfile((LayerProfile("fc", 0.1, 0.1, ("fc/0",)),), (weight,))
    plan = make_plan(profile, Cluster((1, 1), 1e9), PlanRequest(scheme=scheme, among=(scheme,)))
    assert patience_s(plan, plan.order[0]) >= 0
    assert sum(patience_s(plan, send) for send in plan.order) == pytest.approx(PATIENCE * plan.units[0].seconds)


# -- several workers --------------------------------------------------------------------------------------------------
class _Members:
    """Workers whose Sends are pushed, updated after any time, and pulled. A push, or a pull, is over when all have
    joined it; until then whoever has started it waits."""

    def __init__(self, order: list[Send], in_flight: int, owned: list[bool], number: int) -> None:
        self.order, self.owned, self.number = order, owned, number
        self.turns = [Turns(order, in_flight, owned) for _ in range(number)]
        self.updating: list[set[int]] = [set() for _ in range(number)]
        self.tickets: dict[tuple[str, int], dict[int, Ticket]] = {}  # what was started, and by whom
        self.over: set[tuple[str, int]] = set()
        self.now_s = 0.0
        for turns in self.turns:
            for unit in {send.unit for send in order}:
                turns.ready(unit)

    def lane(self, kind: str, rank: int) -> Lane:
        return self.turns[rank].pushes if kind == "push" else self.turns[rank].pulls

    def moves(self) -> list[tuple[str, int, int]]:
        found = []
        for rank in range(self.number):
            for kind in ("push", "pull"):
                place = self.lane(kind, rank).next_place(self.now_s)
                found += [] if place is None else [(kind, rank, place)]
            found += [("update", rank, place) for place in sorted(self.updating[rank])]
        joined = [key for key, tickets in self.tickets.items() if len(tickets) == self.number and key not in self.over]
        return found + [(f"end {kind}", -1, place) for kind, place in joined]

    def do(self, kind: str, rank: int, place: int) -> None:
        if kind in ("push", "pull"):
            ticket = self.lane(kind, rank).start(place, self.now_s + 1)
            self.tickets.setdefault((kind, place), {})[rank] = ticket
        elif kind == "update":
            self.updating[rank].remove(place)
            self.turns[rank].pulls.ready(place, self.now_s + 1)
        else:
            key = (kind.removeprefix("end "), place)
            self.over.add(key)
            for member, ticket in self.tickets[key].items():
                self.lane(key[0], member).leave(ticket)
                if key[0] == "push" and self.owned[self.order[place].unit]:
                    self.updating[member].add(place)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=10),
    st.integers(1, 2),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.randoms(use_true_random=False),
)
def test_no_timing_leads_to_a_deadlock(units, in_flight, owned, random):
    """Three workers, whose updates take as long as they like, and in any order. Whatever happens first, all comes to an
    end; time passes where nothing else can happen, and sometimes before."""
    order = [Send(unit, place, place + 1) for place, unit in enumerate(units)]
    members = _Members(order, in_flight, owned, 3)
    wanted = {("push", place) for place in range(len(order))}
    wanted |= {("pull", place) for place, send in enumerate(order) if owned[send.unit]}
    for _ in range(40 * len(order)):
        possible = members.moves()
        if possible and random.random() < 0.95:
            members.do(*random.choice(possible))
        else:
            members.now_s += 1
    assert members.over == wanted
