"""Several Linears in one unit of factors: what one of them does that was not planned concerns that one alone."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.parallel.team import SIZE, assert_same, batch, filled, grads, in_team

FACTORS = {"*": "factors"}
PLANNED = 6  # iterations after which the plan is made: measured as they come, then as planned


class Halves(nn.Module):
    """Two layers whose factors have as many rows; the second may see more, or be read besides its own layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.second = nn.Linear(16, 5)

    def forward(self, x: Tensor, *, longer: bool = False, reads: bool = False) -> Tensor:
        hidden = torch.tanh(self.first(x))
        outputs = self.second(torch.cat([hidden, hidden * 2]) if longer else hidden)
        penalty = self.second.weight.square().sum() if reads else 0.0
        return outputs.square().mean() + penalty


def model() -> nn.Module:
    return filled(Halves().double())


def expected(step: int, **how: bool) -> list[Tensor]:
    one = copy.deepcopy(model())
    (sum(one(batch(step, rank)[0], **how) for rank in range(SIZE)) / SIZE).backward()
    return grads(one)


def exchange_of(parallel: nn.Module):
    """The only one: both weights travel in it."""
    (exchange,) = parallel._replica.traffic.exchanges
    assert len(exchange.weights) == 2
    return exchange


def test_only_the_weight_with_more_rows_goes_dense():
    def act(member):
        found = []
        for step in range(PLANNED + 3):
            member.model.zero_grad()
            member.model(batch(step, member.rank)[0], longer=step == PLANNED + 1 and member.rank == 1).backward()
            found.append(grads(member.model))
            if step == PLANNED + 1:
                tallies = {name: (t.num_short, t.num_dense) for name, t in exchange_of(member.model).tallies.items()}
        return found, tallies

    for found, tallies in in_team(act, model(), schemes=FACTORS):
        for step in (PLANNED, PLANNED + 2):
            assert_same(found[step], expected(step))
        one = copy.deepcopy(model())
        losses = [one(batch(PLANNED + 1, rank)[0], longer=rank == 1) for rank in range(SIZE)]
        (sum(losses) / SIZE).backward()
        assert_same(found[PLANNED + 1], grads(one))
        assert tallies == {"first.weight": (0, 0), "second.weight": (1, 0)}


def test_a_weight_that_is_read_besides_gives_up_its_factors_and_the_other_keeps_them():
    def act(member):
        for step in range(PLANNED):
            member.model.zero_grad()
            member.model(batch(step, member.rank)[0]).backward()
        exchange_of(member.model)
        for step in range(PLANNED, PLANNED + 14):
            member.model.zero_grad()
            member.model(batch(step, member.rank)[0], reads=True).backward()
        return grads(member.model), {name: unit.scheme.value for name, unit in member.model.plan.unit_of().items()}

    for found, schemes in in_team(act, model(), schemes=FACTORS):
        assert_same(found, expected(PLANNED + 13, reads=True))
        assert schemes["first.weight"] == schemes["first.bias"] == "factors"
        assert schemes["second.weight"] == "ring"


def test_factors_left_behind_of_one_weight_are_dropped_although_the_other_has_arrived():
    """A pass that is told to give the first layer's gradients only goes through the second layer all the same."""

    def act(member):
        for step in range(PLANNED):
            member.model.zero_grad()
            member.model(batch(step, member.rank)[0]).backward()
        exchange_of(member.model)
        member.model.zero_grad()
        bare = member.model.module
        loss = member.model(batch(8, member.rank)[0])
        loss.backward(inputs=list(bare.first.parameters()), retain_graph=True)
        loss.backward(inputs=list(bare.second.parameters()))
        return grads(member.model)

    for found in in_team(act, model(), schemes=FACTORS):
        assert_same(found, expected(8))


def test_a_smaller_batch_fills_up_with_nothing():
    def act(member):
        for step in range(PLANNED + 1):
            member.model.zero_grad()
            x = batch(step, member.rank)[0]
            F.mse_loss(
                member.model(x[: 1 + member.rank] if step == PLANNED else x), torch.zeros(()).double()
            ).backward()
        return grads(member.model)

    one = copy.deepcopy(model())
    losses = [F.mse_loss(one(batch(PLANNED, r)[0][: 1 + r]), torch.zeros(()).double()) for r in range(SIZE)]
    (sum(losses) / SIZE).backward()
    for found in in_team(act, model(), schemes=FACTORS):
        assert_same(found, grads(one))
