"""Convolutions whose windows lie far apart, for which torch's own kernels crash, against loops over every window."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from poseidon.net import Net

CASES = [
    ("Convolution", (5, 9), "kernel_h: 2 kernel_w: 4 stride_h: 1 stride_w: 2147483647 pad_h: 1 pad_w: 2"),
    ("Convolution", (5, 9), "kernel_size: 2 stride: 3000000 group: 2"),
    ("Convolution", (70000,), "kernel_size: 3 stride: 33000 pad: 2 dilation: 2"),
    ("Convolution", (3, 3), "kernel_size: 1 stride: 99999"),
    ("Convolution", (2, 3, 2), "kernel_size: 2 stride: 1 stride: 40000 stride: 40000"),
    ("Deconvolution", (5, 1), "kernel_h: 2 kernel_w: 4 stride_h: 1 stride_w: 2147483647 pad_h: 1 pad_w: 1"),
    ("Deconvolution", (3,), "kernel_size: 3 stride: 40000 pad: 1"),
    ("Deconvolution", (1, 1), "kernel_size: 2 stride: 70000 group: 2"),
]
ALL = slice(None)


def looped(kind: str, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, window, outputs) -> np.ndarray:
    """Every product of a value and a weight, one place at a time; one group."""
    y = np.zeros((len(x), len(bias), *outputs)) + bias.reshape(1, -1, *[1] * len(outputs))
    places = outputs if kind == "Convolution" else x.shape[2:]
    others = x.shape[2:] if kind == "Convolution" else outputs
    for tap in itertools.product(*map(range, window.kernel)):
        for place in itertools.product(*map(range, places)):
            other = tuple(
                i * s - p + k * d
                for i, s, p, k, d in zip(place, window.stride, window.pad, tap, window.dilation, strict=True)
            )
            if not all(0 <= i < n for i, n in zip(other, others, strict=True)):
                continue
            if kind == "Convolution":
                y[(ALL, ALL, *place)] += x[(ALL, ALL, *other)] @ weight[(ALL, ALL, *tap)].T
            else:
                y[(ALL, ALL, *other)] += x[(ALL, ALL, *place)] @ weight[(ALL, ALL, *tap)]
    return y


@pytest.mark.parametrize(("kind", "sizes", "options"), CASES)
def test_windows_far_apart(kind, sizes, options):
    dims = " ".join(f"dim: {size}" for size in (2, 2, *sizes))
    net = Net.from_text(
        f'layer {{ name: "in" type: "Input" top: "x" input_param {{ shape {{ {dims} }} }} }}'
        f'layer {{ name: "L" type: "{kind}" bottom: "x" top: "y" convolution_param {{ num_output: 4 {options} '
        'weight_filler { type: "gaussian" } bias_filler { type: "gaussian" } } }',
        seed=3,
        dtype=torch.float64,
    )
    window, group = net.layers["L"].window, 2 if "group" in options else 1
    assert window.strides_far(4)
    weight, bias = (parameter.detach().numpy() for parameter in net.params["L"])
    x = torch.randn(2, 2, *sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    y = net(x=x)["y"]
    assert tuple(y.shape) == net.blob_shapes["y"]
    in_parts = np.split(x.detach().numpy(), group, axis=1)
    weights = np.split(weight, group, axis=0)
    biases = np.split(bias, group)
    expected = [looped(kind, *part, window, y.shape[2:]) for part in zip(in_parts, weights, biases, strict=True)]
    np.testing.assert_allclose(y.detach().numpy(), np.concatenate(expected, axis=1), rtol=1e-10, atol=1e-12)

    # It is linear: the gradient times a change of the bottom is the change of the top.
    change = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(2))
    (grad,) = torch.autograd.grad((y * y.detach()).sum(), x)
    with torch.no_grad():
        moved = (net(x=x + change)["y"] - y) * y
    torch.testing.assert_close((grad * change).sum(), moved.sum(), rtol=1e-8, atol=1e-8)
