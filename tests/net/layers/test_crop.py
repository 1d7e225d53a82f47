"""Crop against numpy's slices; the reference's values are never read; what it refuses."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from poseidon.errors import LayerError
from tests.net.layers.build import build

TEXT = 'type: "Crop" bottom: "x" bottom: "ref" top: "y" crop_param {{ {} }}'


def counting(*shape: int) -> torch.Tensor:
    return torch.arange(int(np.prod(shape)), dtype=torch.float64).reshape(shape)


@pytest.mark.parametrize(
    ("options", "reference", "expected"),
    [
        ("", (9, 9, 4, 3), np.s_[:, :, :4, :3]),  # axis 2 unless told
        ("offset: 1", (9, 9, 4, 3), np.s_[:, :, 1:5, 1:4]),
        ("axis: 1 offset: 1 offset: 0 offset: 2", (1, 2, 5, 3), np.s_[:, 1:3, 0:5, 2:5]),
        ("axis: -1 offset: 4", (0, 0, 0, 1), np.s_[..., 4:5]),
        ("axis: 0", (1, 3, 5, 5, 8), np.s_[:1]),
        ("axis: -2 offset: 1 offset: 0", (0, 0, 3, 5), np.s_[:, :, 1:4]),
    ],
)
def test_the_part_that_has_the_references_size(options, reference, expected):
    x = counting(2, 3, 5, 5)
    layer = build(TEXT.format(options), x.shape, reference)
    want = x.numpy()[expected]
    assert layer.reshape([tuple(x.shape), reference]) == [want.shape]
    np.testing.assert_array_equal(layer(x, torch.full(reference, torch.nan, dtype=torch.float64)).numpy(), want)


def test_what_was_cut_off_gets_no_gradient():
    x, reference = (
        counting(1, 1, 4, 4).requires_grad_(),
        torch.zeros(1, 1, 2, 2, dtype=torch.float64, requires_grad=True),
    )
    y = build(TEXT.format("offset: 1"), x.shape, reference.shape)(x, reference)
    y.sum().backward()
    expected = np.zeros((1, 1, 4, 4))
    expected[..., 1:3, 1:3] = 1
    np.testing.assert_array_equal(x.grad.numpy(), expected)
    assert reference.grad is None


@pytest.mark.parametrize(
    ("options", "reference", "message"),
    [
        (
            "offset: 3",
            (2, 3, 3, 2),
            "the crop along axis 2 is out of bounds: offset 3 + size 3 of a bottom of shape 2 x 3 x 5 x 5",
        ),
        (
            "axis: 1 offset: 1 offset: 1",
            (2, 2, 2, 2),
            "offset must be given once, or once for each of the 3 axes from axis 1 on, got 2",
        ),
        ("axis: 4", (2, 2, 2, 2), "axis 4 is out of range for a bottom of shape 2 x 3 x 5 x 5"),
        (
            "",
            (2, 2, 2),
            "needs a second bottom with at least as many axes as the first, got 2 x 3 x 5 x 5 and 2 x 2 x 2",
        ),
    ],
)
def test_refusals(options, reference, message):
    with pytest.raises(LayerError, match=re.escape(message)):
        build(TEXT.format(options), (2, 3, 5, 5), reference)
