"""Lossy ways, each asked for by name: replicas stay alike, what is lost is owed, and states carry it on."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from poseidon.errors import UsageError
from poseidon.parallel import Parallel
from tests.parallel.team import SIZE, alone, assert_same, filled, grads, in_team, loss_of, mean_grads, small, values

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


def lossy_gradients(member, step):
    """Of one step: what every worker's optimizer gets, and this worker's own gradient."""
    member.model.zero_grad()
    with member.model.no_sync():
        member.loss(step).backward()
    own = [p.grad.clone() for p in member.model.parameters()]
    member.model.zero_grad()
    member.loss(step).backward()
    return [p.grad.clone() for p in member.model.parameters()], own


def test_another_object_goes_on_with_what_was_owed():
    """Σ gradients + Σ errors owed before = what was applied + Σ errors owed after, in the first lossy iteration of a
    model that has loaded the state; and nothing is forgotten while it measures, or after a freeze."""
    weights = ("0.weight", "2.weight", "4.weight")

    def owed(state):
        return {name: state["poseidon_wire"]["owed"][name]["error"].clone() for name in weights}

    def save(member):
        train(member, torch.optim.SGD(member.model.parameters(), 0.05), 0, 6)
        saved = copy.deepcopy(member.model.state_dict())
        member.model.module[0].bias.requires_grad_(False)
        train(member, torch.optim.SGD(member.model.parameters(), 0.05), 6, 7)
        assert not member.model.is_planned
        while_measuring = owed(member.model.state_dict())
        for name, error in owed(saved).items():
            assert torch.equal(while_measuring[name], error)
        return saved

    states = in_team(save, schemes={"*": "powersgd"})

    def resume(member):
        member.model.load_state_dict(copy.deepcopy(states[member.rank]))
        before = []
        while not member.model.is_planned or not before:
            before.append(owed(member.model.state_dict()))
            applied, own = lossy_gradients(member, 20)
        after = owed(member.model.state_dict())
        index = {name: i for i, (name, _) in enumerate(member.model.module.named_parameters())}
        return {n: (before[-1][n], own[index[n]], applied[index[n]], after[n]) for n in weights}, before

    by_rank = in_team(resume, small(seed=9), schemes={"*": "powersgd"})
    for rank, (_, before) in enumerate(by_rank):
        for seen in before:
            for name, error in owed(states[rank]).items():
                assert torch.equal(seen[name], error)
    for name in weights:
        figures = [found[name] for found, _ in by_rank]
        given = sum(owed_before + own for owed_before, own, _, _ in figures)
        taken = SIZE * figures[0][2] + sum(owed_after for *_, owed_after in figures)
        assert float(figures[0][3].norm()) > 0
        torch.testing.assert_close(taken, given, rtol=1e-10, atol=1e-12)


def test_full_rank_powersgd_is_exact():
    """Gradients of five logits under cross entropy add up to zero, so the weight's has rank 4 at most: four directions
    are all there are, whatever they are."""
    base = filled(nn.Sequential(nn.Linear(6, 5)).double())

    def act(member):
        found = []
        for step in range(9):
            member.model.zero_grad()
            loss_of(member.model, step, member.rank).backward()
            found.append(grads(member.model))
        return found, member.model.plan.unit_of()["0.weight"].scheme.value

    for found, scheme in in_team(act, base, schemes={"0": "powersgd"}, powersgd_rank=4):
        assert scheme == "powersgd"
        for step, own in enumerate(found):
            assert_same(own, mean_grads(lambda model, rank, step=step: loss_of(model, step, rank), base), rtol=1e-10)


def test_vectors_cannot_be_approximated():
    with pytest.raises(UsageError, match=r"nothing that matches '0\.bias' can travel by powersgd"):
        Parallel(small(), schemes={"0.bias": "powersgd"})
