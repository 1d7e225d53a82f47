"""Measuring: what passes tell about a model, by a clock that is set by hand; and how long it goes on."""

from __future__ import annotations

import pytest
import torch

from poseidon.parallel import measured
from poseidon.parallel.measured import Measuring
from poseidon.parallel.structure import find_structure
from poseidon.plan import Scheme
from tests.parallel.team import in_team, small

LINEARS = ("0", "2", "4")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(measured, "time", clock)
    return clock


def run_pass(measuring: Measuring, clock: Clock, forward_s: list[float], backward_s: list[float]) -> None:
    """A pass whose layers take so long, in the model's order."""
    measuring.begin()
    for name, seconds in zip(LINEARS, forward_s, strict=True):
        measuring.enter(name)
        clock.now_s += seconds
    measuring.end_forward()
    arrived = {}
    for name, seconds in zip(reversed(LINEARS), reversed(backward_s), strict=True):
        clock.now_s += seconds
        arrived |= {f"{name}.weight": clock.now_s, f"{name}.bias": clock.now_s}
    measuring.end(arrived)


def test_of_a_layers_times_the_shortest_counts_and_the_first_pass_does_not(clock):
    measuring = Measuring(find_structure(small()), {})
    run_pass(measuring, clock, [0.5, 0.5, 0.5], [0.5, 0.5, 0.5])
    run_pass(measuring, clock, [1, 7, 3], [4, 5, 9])
    assert not measuring.is_over
    run_pass(measuring, clock, [6, 2, 3], [4, 8, 6])
    assert measuring.is_over
    assert measuring.seconds()[1:] == [[1, 4], [2, 5], [3, 6]]  # the model itself comes first


def test_what_is_timed_again_replaces_what_was_timed_before(clock):
    measuring = Measuring(find_structure(small()), {})
    measuring.readers = {"0.weight": {"4"}}
    for _ in range(3):
        run_pass(measuring, clock, [1, 1, 1], [2, 2, 2])
    measuring.repeat()
    assert measuring.is_again
    assert not measuring.is_over
    assert not measuring.watches, "who reads what is known"
    for _ in range(2):
        run_pass(measuring, clock, [3, 3, 3], [4, 4, 4])
    assert measuring.is_over
    assert [forward_s for forward_s, _ in measuring.seconds()[1:]] == [3, 3, 3]
    assert "0.weight" in measuring.reads()["4"]


@pytest.mark.parametrize(("scheme", "first_planned"), [("ring", 3), ("powersgd", 3), ("factors", 5)])
def test_passes_are_timed_again_only_where_backward_computes_less_than_before(scheme, first_planned):
    def act(member):
        planned = []
        for step in range(7):
            member.loss(step).backward()
            planned.append(member.model.is_planned)
            member.model.zero_grad()
        return planned

    for planned in in_team(act, schemes={"*": scheme}):
        assert planned == [step >= first_planned for step in range(7)]


def test_a_row_that_was_looked_up_often_is_planned_once():
    """By hand: of nine look-ups in two calls rank 0 reads two rows, rank 1 three; more counts."""

    def act(member):
        for _ in range(6):
            read = torch.tensor([[7, 7, 7], [9, 7, 7], [9, 9, 9 + 2 * member.rank]])
            (member.model(read[:2]).sum() + member.model(read[2:]).sum()).backward()
            member.model.zero_grad()
        return [unit.factor_bytes for unit in member.model.plan.units if unit.scheme is Scheme.ROWS]

    table = torch.nn.Sequential(torch.nn.Embedding(50, 4), torch.nn.Linear(4, 2)).double()
    for row_bytes in in_team(act, table, schemes={"0.*": "rows", "1.*": "ring"}):
        assert row_bytes == [3 * (4 * 8 + 4)]  # to one other worker: rows of four doubles, each with its number


def test_a_table_is_timed_again_too():
    def act(member):
        planned = []
        for step in range(7):
            member.model(torch.tensor([[step, member.rank]])).sum().backward()
            planned.append(member.model.is_planned)
            member.model.zero_grad()
        return planned

    table = torch.nn.Sequential(torch.nn.Embedding(50, 4), torch.nn.Flatten(), torch.nn.Linear(8, 2)).double()
    for planned in in_team(act, table, schemes={"0.*": "rows", "2.*": "ring"}):
        assert planned == [step >= 5 for step in range(7)]
