"""Lossy ways, each asked for by name: replicas stay alike, what is lost is owed, and states carry it on."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from poseidon.errors import UsageError
from poseidon.parallel import Parallel
from tests.parallel.team import SIZE, alone, assert_same, in_team, loss_of, small, values

LOSSY = ({"wire": "bf16"}, {"wire": "fp16"}, {"schemes": {"*": "powersgd"}}, {"schemes": {"2": "powersgd"}})


def train(member, optimizer, first, last):
    for step in range(first, last):
        optimizer.zero_grad()
        member.loss(step).backward()
        optimizer.step()


@pytest.mark.parametrize("options", LOSSY, ids=str)
def test_replicas_are_alike_and_near(options):
    def act(member):
        train(member, torch.optim.SGD(member.model.parameters(), 0.05), 0, 30)
        return values(member.model), {unit.scheme.value for unit in member.model.plan.units}

    exact = alone(30, lambda params: torch.optim.SGD(params, 0.05))
    start = values(small())
    first, *others = in_team(act, **options)
    for found, _ in others:
        assert all(torch.equal(one, other) for one, other in zip(found, first[0], strict=True))
    moved = sum(float((a - b).square().sum()) for a, b in zip(exact, start, strict=True))
    off = sum(float((a - b).square().sum()) for a, b in zip(exact, first[0], strict=True))
    assert off < 0.05 * moved
    assert off > 0 or "schemes" in options
    assert ("powersgd" in first[1]) == ("schemes" in options)


@pytest.mark.parametrize("options", [{"wire": "bf16"}, {"schemes": {"*": "powersgd"}}], ids=str)
def test_states_carry_what_is_owed(options):
    def act(member):
        optimizer = torch.optim.SGD(member.model.parameters(), 0.05)
        train(member, optimizer, 0, 6)
        saved = copy.deepcopy(member.model.state_dict())
        assert saved["poseidon_wire"]["rank"] == member.rank
        train(member, optimizer, 6, 9)
        expected = values(member.model)
        member.model.load_state_dict(saved)
        train(member, optimizer, 6, 9)
        again = values(member.model)
        member.model.load_state_dict({k: v for k, v in saved.items() if k != "poseidon_wire"}, strict=False)
        return expected, again

    for expected, again in in_team(act, **options):
        assert_same(again, expected, rtol=0)


def test_full_rank_powersgd_is_exact():
    """A 2 × 9 matrix has rank 2 at most: nothing is lost after directions have settled."""
    base = nn.Sequential(nn.Linear(6, 5)).double()
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.fill_(0.1)

    def act(member):
        member.model.zero_grad()
        for step in range(5):
            member.model.zero_grad()
            loss_of(member.model, step, member.rank).backward()
        return [p.grad.clone() for p in member.model.parameters()]

    model = copy.deepcopy(base)
    (sum(loss_of(model, 4, rank) for rank in range(SIZE)) / SIZE).backward()
    (found, *_) = in_team(act, base, schemes={"0": "powersgd"}, powersgd_rank=4)
    expected = [p.grad for p in model.parameters()]
    assert float((found[0] - expected[0]).norm()) < 0.2 * float(expected[0].norm())
    assert_same(found[1:], expected[1:])


def test_vectors_cannot_be_approximated():
    with pytest.raises(UsageError, match=r"nothing that matches '0\.bias' can travel by powersgd"):
        Parallel(small(), schemes={"0.bias": "powersgd"})
