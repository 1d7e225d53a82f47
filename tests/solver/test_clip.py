"""Gradient clipping against its definition."""

from __future__ import annotations

import math

import pytest
import torch

from poseidon.solver.clip import clip_gradients


def grads():
    return [torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor(12.0)]  # norms 5 and 12, together 13


def test_scales_all_gradients_to_the_limit_together():
    given = grads()
    clipping = clip_gradients(given, 6.5)
    assert (clipping.norm, clipping.limit, clipping.factor) == (13, 6.5, 0.5)
    assert torch.equal(given[0], torch.tensor([[1.5, 0.0], [0.0, 2.0]]))
    assert given[1] == 6


@pytest.mark.parametrize("limit", [13.0, 20.0, -1.0, math.inf])
def test_leaves_gradients_within_the_limit_alone(limit):
    given = grads()
    assert clip_gradients(given, limit) is None
    assert all(torch.equal(a, b) for a, b in zip(given, grads(), strict=True))


def test_a_limit_of_zero_stops_all_movement():
    given = grads()
    assert clip_gradients(given, 0.0).factor == 0
    assert not any(bool(grad.any()) for grad in given)


def test_no_gradients_at_all():
    assert clip_gradients([], 1.0) is None
