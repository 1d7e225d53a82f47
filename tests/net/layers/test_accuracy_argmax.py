"""Accuracy and ArgMax against loops over sorted scores: ties, axes, ignored labels, classes that do not occur."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import torch

from poseidon.errors import LayerError
from tests.net.layers.build import build, one


def accuracy(options: str = "", tops: str = 'top: "acc" top: "per_class"') -> str:
    return f'type: "Accuracy" bottom: "x" bottom: "t" {tops} accuracy_param {{ {options} }}'


def tied(*shape: int, levels: int = 4, seed: int = 1) -> torch.Tensor:
    """Scores with many equal ones."""
    return torch.from_numpy(np.random.default_rng(seed).integers(0, levels, shape).astype("f8"))


def accuracy_by_loops(x, labels, axis, top_k, ignore):
    outer, inner, classes = x.shape[:axis], x.shape[axis + 1 :], x.shape[axis]
    flat = labels.reshape(-1)
    right, seen = np.zeros(classes), np.zeros(classes)
    for number, (before, behind) in enumerate(itertools.product(np.ndindex(*outer), np.ndindex(*inner))):
        label = int(flat[number])
        if label == ignore:
            continue
        own = x[(*before, label, *behind)]
        rivals = sum(x[(*before, k, *behind)] >= own for k in range(classes) if k != label)
        seen[label] += 1
        right[label] += rivals < top_k
    overall = right.sum() / seen.sum() if seen.sum() else 0.0
    return overall, [r / s if s else 0.0 for r, s in zip(right, seen, strict=True)]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("ignore", [None, 2, 255])
@pytest.mark.parametrize("top_k", [1, 2, 4])
@pytest.mark.parametrize(
    ("shape", "axis", "label_shape"),
    [((9, 4), 1, (9,)), ((3, 4, 2, 3), 1, (3, 1, 2, 3)), ((3, 4, 2, 3), -3, (3, 2, 3)), ((3, 5, 4), -1, (15, 1))],
)
def test_accuracy(shape, axis, label_shape, top_k, ignore, layout):
    options = f"axis: {axis} top_k: {top_k} " + (f"ignore_label: {ignore}" if ignore is not None else "")
    x = tied(*shape)
    x = x.to(memory_format=layout) if len(shape) == 4 else x
    labels = tied(*label_shape, levels=3, seed=2)  # class 3 does not occur
    if ignore == 255:
        labels.view(-1)[3] = 255
    overall, per_class = build(accuracy(options), shape, label_shape)(x, labels)
    want_overall, want_per_class = accuracy_by_loops(x.numpy(), labels.numpy(), axis % len(shape), top_k, ignore)
    assert overall.shape == ()
    assert overall.item() == pytest.approx(want_overall)
    np.testing.assert_allclose(per_class.numpy(), want_per_class)


def test_accuracy_of_nothing_is_zero():
    overall, per_class = build(accuracy("ignore_label: 1"), (2, 3), (2,))(tied(2, 3), torch.ones(2))
    assert overall.item() == 0
    assert per_class.tolist() == [0, 0, 0]
    assert build(accuracy(), (0, 3), (0,))(torch.zeros(0, 3), torch.zeros(0))[0].item() == 0


def test_a_net_that_has_diverged_is_not_right():
    x = torch.full((3, 4), math.nan)
    x[1] = torch.tensor([0.0, math.nan, 0.0, 9.0])
    overall, _ = build(accuracy(), (3, 4), (3,))(x, torch.tensor([0.0, 3.0, 1.0]))
    assert overall.item() == 0


def test_accuracy_never_takes_a_gradient():
    layer = build(accuracy(tops='top: "acc"'), (2, 3), (2,))
    assert not layer.allows_forced_backward(0)
    labels = torch.tensor([0.0, 1.0], requires_grad=True)
    assert not layer(tied(2, 3).requires_grad_(), labels).requires_grad


def test_accuracy_in_low_precision_counts_exactly():
    x, labels = torch.zeros(1000, 2, dtype=torch.bfloat16), torch.zeros(1000)
    x[:701, 0] = 1
    assert build(accuracy(tops='top: "acc"'), (1000, 2), (1000,))(x, labels).item() == pytest.approx(0.701)


@pytest.mark.parametrize(
    ("options", "shapes", "message"),
    [
        (
            "top_k: 4",
            [(2, 3), (2,)],
            "top_k must not exceed the number of classes, got 4 for 3 classes (2 x 3, axis 1)",
        ),
        ("", [(2, 3, 2), (2,)], "needs one label per prediction: 4 for 2 x 3 x 2 with classes along axis 1, got 2 (2)"),
        ("axis: 2", [(2, 3), (2,)], "accuracy_param.axis 2 is out of range for a bottom of shape 2 x 3"),
        ("", [(2, 3)], "takes 2 bottom blob(s), got 1"),
    ],
)
def test_accuracy_refusals(options, shapes, message):
    words = accuracy(options) if len(shapes) == 2 else accuracy(options).replace('bottom: "t"', "")
    with pytest.raises(LayerError, match=re.escape(message)):
        build(words, *shapes)


def test_accuracy_names_a_label_out_of_range():
    with pytest.raises(LayerError, match=re.escape("label 3 (number 1 of 2) is outside 0 to 2")):
        build(accuracy(), (2, 3), (2,))(tied(2, 3), torch.tensor([1.0, 3.0]))


def ranked(entries) -> list[tuple[float, int]]:
    """(value, position), largest first, of equal values the later position first."""
    return sorted(((float(value), place) for place, value in enumerate(entries)), reverse=True)


@pytest.mark.parametrize("levels", [2, 5, 10_000])
@pytest.mark.parametrize("top_k", [1, 2, 5])
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((3, 5), 1), ((5, 3), 0), ((2, 6, 3, 2), 1), ((2, 3, 5), -1)])
def test_argmax_along_an_axis(shape, axis, values, top_k, levels):
    layer = build(
        one("ArgMax", f"argmax_param {{ axis: {axis} top_k: {top_k} out_max_val: {str(values).lower()} }}"), shape
    )
    x = tied(*shape, levels=levels)
    got = np.moveaxis(layer(x).numpy(), axis, -1)
    lines = np.moveaxis(x.numpy(), axis, -1)
    assert got.shape == (*lines.shape[:-1], top_k)
    for place in np.ndindex(*lines.shape[:-1]):
        best = ranked(lines[place])[:top_k]
        assert got[place].tolist() == [value if values else position for value, position in best]


@pytest.mark.parametrize("levels", [2, 10_000])
@pytest.mark.parametrize("top_k", [1, 3, 4])
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("shape", [(3, 4), (2, 2, 2), (2, 3, 2, 2), (2, 3, 2, 1, 2)])
def test_argmax_of_whole_samples(shape, values, top_k, levels):
    layer = build(one("ArgMax", f"argmax_param {{ top_k: {top_k} out_max_val: {str(values).lower()} }}"), shape)
    x = tied(*shape, levels=levels)
    got = layer(x).numpy()
    assert got.shape == (shape[0], 2 if values else 1, top_k, *[1] * (len(shape) - 3))
    for sample, found in zip(x.reshape(shape[0], -1), got.reshape(shape[0], -1, top_k), strict=True):
        best = ranked(sample)[:top_k]
        assert found[0].tolist() == [position for _, position in best]
        if values:
            assert found[1].tolist() == [value for value, _ in best]


def test_argmax_positions_stay_exact_in_low_precision():
    x = torch.zeros(1, 1000, dtype=torch.bfloat16)
    x[0, 997] = 1
    found = build(one("ArgMax"), (1, 1000))(x)
    assert found.dtype == torch.float32
    assert found.item() == 997


def test_argmax_never_takes_a_gradient():
    layer = build(one("ArgMax", "argmax_param { out_max_val: true }"), (2, 3))
    assert not layer.allows_forced_backward(0)
    assert not layer(tied(2, 3).requires_grad_()).requires_grad


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ("top_k: 7", (2, 3, 2), "top_k must be 1 to 6, the entries of one sample (2 x 3 x 2), got 7"),
        ("top_k: 0", (2, 3), "top_k must be 1 to 3, the entries of one sample (2 x 3), got 0"),
        ("top_k: 3 axis: 0", (2, 3), "top_k must be 1 to 2, the entries of axis 0 (2 x 3), got 3"),
        ("axis: -3", (2, 3), "argmax_param.axis -3 is out of range for a bottom of shape 2 x 3"),
        ("", (), "needs a bottom with at least one axis, got a scalar"),
    ],
)
def test_argmax_refusals(options, shape, message):
    with pytest.raises(LayerError, match=re.escape(message)):
        build(one("ArgMax", f"argmax_param {{ {options} }}"), shape)
