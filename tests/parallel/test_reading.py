"""Weights that no module is seen to read, or not at first: an update on its way must be waited for all the same."""

from __future__ import annotations

import copy
import ctypes
import pickle
import threading
import time

import pytest
import torch
from torch import nn

import poseidon
from tests.parallel.team import Member, alone, assert_same, in_team, loss_of, values

NUM_STEPS = 8
NUM_WATCHED = 5  # steps, more than are measured before the plan is made


class Hidden(torch.autograd.Function):
    """Multiplies by a weight as a kernel of one's own does, by its address: PyTorch sees no operation on it."""

    @staticmethod
    def forward(ctx, x, weight):
        assert weight.dtype == torch.float64
        found = (ctypes.c_double * weight.numel()).from_address(weight.data_ptr())
        factors = torch.tensor(list(found), dtype=torch.float64)
        ctx.save_for_backward(x, factors)
        return x * factors

    @staticmethod
    def backward(ctx, grad):
        x, factors = ctx.saved_tensors
        return grad * factors, (grad * x).sum(0)


class Layer(nn.Module):
    """Says so when it has read its weight."""

    def __init__(self):
        super().__init__()
        self.has_read = threading.Event()

    def __deepcopy__(self, memo):
        return type(self)()

    def forward(self, x):
        output = Hidden.apply(x, self.weight())
        self.has_read.set()
        return output


class OnAShelf(Layer):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterDict({"own": nn.ParameterList([nn.Parameter(torch.ones(6, dtype=torch.double))])})

    def weight(self):
        return self.weights["own"][0]


class Aside(nn.Module):
    """Holds a weight for others, and never runs."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6, dtype=torch.double))


class OfAnother(Layer):
    def __init__(self):
        super().__init__()
        self.aside = Aside()

    def weight(self):
        return self.aside.weight


@pytest.mark.parametrize("layer", [OnAShelf, OfAnother])
def test_its_update_is_waited_for(layer):
    """Rank 1 holds its gradients back until rank 0 has read the weight for the next pass, which it must not: then rank
    1 has waited in vain. The Linear comes later and goes another way, so that nobody waits for it first."""
    base = nn.Sequential(layer(), nn.Linear(6, 5).double())
    layers: dict[int, Layer] = {}

    def act(member):
        optimizer = poseidon.overlap(torch.optim.SGD(member.model.parameters(), 0.1), member.model)
        layers[member.rank] = next(found for found in member.model.modules() if isinstance(found, layer))
        for step in range(NUM_STEPS):
            take_step(member, optimizer, step, layers)
        poseidon.wait(member.model)
        return values(member.model)

    for found in in_team(act, base, schemes={"1": "factors"}):
        assert_same(found, alone(NUM_STEPS, lambda params: torch.optim.SGD(params, 0.1), base))


def take_step(member: Member, optimizer: torch.optim.Optimizer, step: int, layers: dict[int, Layer]) -> None:
    optimizer.zero_grad()
    loss = member.loss(step)
    if member.rank == 1 and member.model.is_planned and step < NUM_STEPS - 1:
        layers[0].has_read.wait(0.05)  # for this pass
        layers[0].has_read.clear()
        layers[0].has_read.wait(0.2)
    loss.backward()
    optimizer.step()


class Whimsical(nn.Module):
    """Takes to adding a weight that is its last layer's, after all passes that are watched. Backward does not need that
    weight again, so nobody but us could notice that it has changed in between."""

    def __init__(self):
        super().__init__()
        self.has_read, self.is_late = threading.Event(), False
        self.last = nn.Linear(6, 5).double()

    def __deepcopy__(self, memo):
        found = type(self)()
        found.load_state_dict(self.state_dict())
        return found

    def added(self):
        return self.last.weight[0]

    def forward(self, x):
        if self.is_late:
            x = x + self.added()
        self.has_read.set()
        return self.last(x)


class ThroughTheDict(Whimsical):
    def added(self):
        return self.last._parameters["weight"][0]


class ByCounting(Whimsical):
    def added(self):
        return next(self.last.parameters())[0]


@pytest.mark.parametrize("model", [Whimsical, ThroughTheDict, ByCounting])
def test_what_is_read_only_later_is_waited_for(model):
    base = model()
    models: dict[int, Whimsical] = {}

    def act(member):
        optimizer = poseidon.overlap(torch.optim.SGD(member.model.parameters(), 0.1), member.model)
        own = models[member.rank] = member.model.module
        for step in range(NUM_STEPS):
            own.is_late = step >= NUM_WATCHED
            assert member.model.is_planned or not own.is_late, "it was watched"
            take_step(member, optimizer, step, models)
        poseidon.wait(member.model)
        return values(member.model)

    expected = copy.deepcopy(base)
    optimizer = torch.optim.SGD(expected.parameters(), 0.1)
    for step in range(NUM_STEPS):
        expected.is_late = step >= NUM_WATCHED
        optimizer.zero_grad()
        (sum(loss_of(expected, step, rank) for rank in range(2)) / 2).backward()
        optimizer.step()
    for found in in_team(act, base):
        assert_same(found, values(expected))


def test_copies_and_readers_from_outside_get_what_was_updated():
    """Without a wait of their own: rank 1 takes its time with backward, and rank 0 looks right after its step."""
    reads = {
        "attribute": lambda model: model[4].weight.detach().clone(),
        "state_dict": lambda model: model.state_dict()["4.weight"].clone(),
        "deepcopy": lambda model: copy.deepcopy(model)[4].weight.detach(),
        "pickle": lambda model: pickle.loads(pickle.dumps(model))[4].weight.detach(),
        "dict": lambda model: model[4]._parameters.copy()["weight"].detach().clone(),
        "get": lambda model: model[4]._parameters.get("weight").detach().clone(),
        "parameters": lambda model: list(model.parameters())[4].detach().clone(),
    }

    def act(member):
        optimizer = poseidon.overlap(torch.optim.SGD(member.model.parameters(), 0.1), member.model)
        found = []
        for step in range(NUM_WATCHED + len(reads)):
            optimizer.zero_grad()
            loss = member.loss(step)
            if member.rank == 1 and member.model.is_planned:
                time.sleep(0.05)
            loss.backward()
            optimizer.step()
            if step >= NUM_WATCHED:
                found.append(list(reads.values())[step - NUM_WATCHED](member.model.module))
                poseidon.wait(member.model)
                found.append(member.model.module[4].weight.detach().clone())
        copied = copy.deepcopy(member.model.module)
        assert {type(module._parameters) for module in copied.modules()} == {dict}
        return found

    for found in in_team(act):
        for seen, settled in zip(found[::2], found[1::2], strict=True):
            torch.testing.assert_close(seen, settled, rtol=1e-12, atol=1e-14)


def test_closing_gives_the_model_back_as_it_was():
    def act(member):
        poseidon.overlap(torch.optim.SGD(member.model.parameters(), 0.1), member.model)
        held = {type(module._parameters).__name__ for module in member.model.module.modules()}
        module = member.model.module
        member.model.close()
        return held, {type(found._parameters) for found in module.modules()}

    for held, after in in_team(act):
        assert held == {"Holdings", "dict"}
        assert after == {dict}
