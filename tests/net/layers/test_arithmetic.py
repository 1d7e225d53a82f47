"""Eltwise and Reduction against loops: ties, coefficients, axes, zeros, and what they refuse."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import torch

from poseidon.errors import LayerError
from tests.net.layers.build import build, one


def eltwise(num_bottoms: int, options: str = "") -> str:
    bottoms = " ".join(f'bottom: "x{i}"' for i in range(num_bottoms))
    return f'type: "Eltwise" {bottoms} top: "y" eltwise_param {{ {options} }}'


def winner(values: tuple[float, ...]) -> int:
    """Caffe's rule, by hand: the second beats the first unless that is greater; later ones must be greater."""
    best = 0 if values[0] > values[1] else 1
    for index in range(2, len(values)):
        if values[index] > values[best]:
            best = index
    return best


@pytest.mark.parametrize("num_bottoms", [2, 3, 4])
def test_max_gives_the_whole_gradient_to_caffes_winner(num_bottoms):
    table = np.array(list(itertools.product([0.0, 1.0, 2.0], repeat=num_bottoms)))
    bottoms = [torch.tensor(column, requires_grad=True) for column in table.T.copy()]
    y = build(eltwise(num_bottoms, "operation: MAX"), *[b.shape for b in bottoms])(*bottoms)
    np.testing.assert_array_equal(y.detach().numpy(), table.max(1))
    seed = np.arange(1.0, len(table) + 1)
    for _ in range(2):
        grads = torch.autograd.grad(y, bottoms, torch.tensor(seed), retain_graph=True)
        for index, grad in enumerate(grads):
            expected = [seed[row] if winner(tuple(values)) == index else 0 for row, values in enumerate(table)]
            np.testing.assert_array_equal(grad.numpy(), expected)


def test_max_with_only_some_bottoms_learning():
    a, b = torch.tensor([1.0, 2.0, 5.0]), torch.tensor([1.0, 3.0, 4.0], requires_grad=True)
    build(eltwise(2, "operation: MAX"), a.shape, b.shape)(a, b).backward(torch.ones(3))
    assert b.grad.tolist() == [1, 1, 0]


@pytest.mark.parametrize("stable", ["true", "false"])
def test_prod_has_the_true_gradient_at_zeros(stable):
    rows = [(0.0, 2.0, 3.0), (0.0, 0.0, 3.0), (1.0, 2.0, 3.0)]
    bottoms = [torch.tensor(column, dtype=torch.float64, requires_grad=True) for column in zip(*rows, strict=True)]
    layer = build(eltwise(3, f"operation: PROD stable_prod_grad: {stable}"), *[b.shape for b in bottoms])
    layer(*bottoms).backward(torch.ones(3, dtype=torch.float64))
    for index, bottom in enumerate(bottoms):
        expected = [np.prod([v for k, v in enumerate(row) if k != index]) for row in rows]
        np.testing.assert_allclose(bottom.grad.numpy(), expected)


def test_sum_with_coefficients_leaves_its_bottoms_alone():
    a, b, c = (torch.full((2, 2), value, dtype=torch.float64) for value in (1.0, 2.0, 4.0))
    y = build(eltwise(3, "coeff: 0.5 coeff: -1 coeff: 0"), *[(2, 2)] * 3)(a, b, c)
    assert y.tolist() == [[-1.5, -1.5]] * 2
    plain = build(eltwise(3), *[(2, 2)] * 3)(a, b, c)
    assert plain.tolist() == [[7, 7]] * 2
    assert (a[0, 0], b[0, 0], c[0, 0]) == (1, 2, 4)


def test_eltwise_mixes_precisions():
    a, b = torch.ones(3, dtype=torch.bfloat16, requires_grad=True), torch.zeros(3, requires_grad=True)
    for operation in ("SUM", "PROD", "MAX"):
        build(eltwise(2, f"operation: {operation}"), (3,), (3,))(a, b).sum().backward()
    assert a.grad.dtype == torch.bfloat16
    assert b.grad.dtype == torch.float32


REDUCTIONS = {
    "SUM": (np.sum, lambda x: np.ones_like(x)),
    "ASUM": (lambda x: np.abs(x).sum(), np.sign),
    "SUMSQ": (lambda x: (x * x).sum(), lambda x: 2 * x),
    "MEAN": (np.mean, lambda x: np.full_like(x, 1 / x.size)),
}


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("operation", REDUCTIONS)
def test_reduction(operation, axis):
    x = torch.tensor([[[-1.5, 0, 2], [0, 0, 3]], [[4, -5, 0], [0.5, 1, -1]]], dtype=torch.float64, requires_grad=True)
    layer = build(one("Reduction", f"reduction_param {{ operation: {operation} axis: {axis} coeff: -2 }}"), x.shape)
    y = layer(x)
    kept = x.shape[: axis % 3]
    assert layer.reshape([tuple(x.shape)]) == [kept]
    assert y.shape == kept
    seed = torch.arange(1.0, y.numel() + 1, dtype=torch.float64).reshape(kept)
    y.backward(seed)
    reduced, slope = REDUCTIONS[operation]
    for index in np.ndindex(*kept):
        row = x.detach().numpy()[index]
        np.testing.assert_allclose(y[index].item(), -2 * reduced(row))
        np.testing.assert_allclose(x.grad.numpy()[index], -2 * seed[index].item() * slope(row))


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (eltwise(1), [(2,)], "(Eltwise): takes at least 2 bottom blob(s), got 1"),
        (eltwise(2), [(2, 3), (3, 2)], "(Eltwise): bottoms need the same shape, got 2 x 3 and 3 x 2"),
        (eltwise(2, "coeff: 1"), [(2,), (2,)], "takes one coeff per bottom (2), got 1"),
        (
            eltwise(2, "operation: PROD coeff: 1 coeff: 2"),
            [(2,), (2,)],
            "takes coefficients for SUM only, got coeff with operation PROD",
        ),
        (one("Reduction"), [()], "(Reduction): axis 0 is out of range for a bottom of shape ()"),
        (
            one("Reduction", "reduction_param { axis: 2 }"),
            [(2, 3)],
            "axis 2 is out of range for a bottom of shape 2 x 3",
        ),
    ],
)
def test_refusals(text, shapes, message):
    with pytest.raises(LayerError, match=re.escape(message)):
        build(text, *shapes)
