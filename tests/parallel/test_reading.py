"""Weights that no module is seen to read: an update that is still on its way must be waited for all the same."""

from __future__ import annotations

import ctypes
import threading

import pytest
import torch
from torch import nn

import poseidon
from tests.parallel.team import alone, assert_same, in_team, values

NUM_STEPS = 8


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
            optimizer.zero_grad()
            loss = member.loss(step)
            if member.rank == 1 and member.model.is_planned and step < NUM_STEPS - 1:
                layers[0].has_read.wait(0.05)  # for this pass
                layers[0].has_read.clear()
                layers[0].has_read.wait(0.2)
            loss.backward()
            optimizer.step()
        poseidon.wait(member.model)
        return values(member.model)

    for found in in_team(act, base, schemes={"1": "factors"}):
        assert_same(found, alone(NUM_STEPS, lambda params: torch.optim.SGD(params, 0.1), base))
