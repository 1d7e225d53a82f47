"""Layers that cut, join and rename: shapes by hand, values by numpy, views that share memory, and what they refuse."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from poseidon.errors import LayerError
from tests.net.layers.build import build, one


def counting(*shape: int) -> torch.Tensor:
    return torch.arange(int(np.prod(shape)), dtype=torch.float64).reshape(shape)


def two(type_name: str, options: str = "") -> str:
    return f'type: "{type_name}" bottom: "a" bottom: "b" top: "y" {options}'


def cut(num_tops: int, options: str = "") -> str:
    tops = " ".join(f'top: "y{i}"' for i in range(num_tops))
    return f'type: "Slice" bottom: "x" {tops} slice_param {{ {options} }}'


# -- Concat, Slice, Split -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "axis", "other"),
    [("", 1, (2, 5, 4)), ("axis: -1", 2, (2, 3, 1)), ("axis: 0", 0, (4, 3, 4)), ("concat_dim: 2", 2, (2, 3, 2))],
)
def test_concat(options, axis, other):
    a, b = counting(2, 3, 4), -counting(*other)
    layer = build(two("Concat", f"concat_param {{ {options} }}"), a.shape, b.shape)
    expected = np.concatenate([a.numpy(), b.numpy()], axis)
    assert layer.reshape([tuple(a.shape), tuple(b.shape)]) == [expected.shape]
    np.testing.assert_array_equal(layer(a, b).numpy(), expected)


def test_concat_of_one_is_a_copy_nobody_else_holds():
    x = counting(2, 3)
    y = build(one("Concat"), x.shape)(x)
    assert torch.equal(x, y)
    assert x.data_ptr() != y.data_ptr()


@pytest.mark.parametrize(
    ("layer_text", "axis", "points"),
    [
        (cut(3), 1, [2, 4]),
        (cut(2, "slice_point: 5"), 1, [5]),
        (cut(3, "axis: -1 slice_point: 1 slice_point: 2"), 2, [1, 2]),
        (cut(2, "slice_dim: 0"), 0, [1]),
        (cut(2, "slice_point: 6"), 1, [6]),  # Caffe allows an empty last piece
    ],
)
def test_slice(layer_text, axis, points):
    x = counting(2, 6, 4)
    layer = build(layer_text, x.shape)
    expected = np.split(x.numpy(), points, axis)
    assert layer.reshape([tuple(x.shape)]) == [piece.shape for piece in expected]
    for got, want in zip(layer(x), expected, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (cut(2), (2, 6)),
        ('type: "Split" bottom: "x" top: "p" top: "q"', (2, 6)),
        (one("Flatten"), (2, 3, 2)),
        (one("Reshape", "reshape_param { shape { dim: -1 } }"), (2, 6)),
    ],
)
def test_views_copy_nothing(text, shape):
    x = counting(*shape)
    made = build(text, shape)(x)
    storages = {top.untyped_storage().data_ptr() for top in (made if isinstance(made, tuple) else (made,))}
    assert storages == {x.untyped_storage().data_ptr()}


def test_shapes_are_read_from_the_bottom_not_remembered():
    layer = build(cut(2), (2, 6))
    assert [top.shape for top in layer(counting(3, 4, 5))] == [(3, 2, 5), (3, 2, 5)]
    flat = build(one("Flatten", "flatten_param { axis: -2 }"), (2, 6))
    assert flat(counting(3, 4, 5)).shape == (3, 20)


# -- Flatten, Reshape, Tile -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", (2, 60)),
        ("axis: 0", (120,)),
        ("axis: 2", (2, 3, 20)),
        ("axis: -3 end_axis: -2", (2, 12, 5)),
        ("end_axis: 1", (2, 3, 4, 5)),
        ("axis: 2 end_axis: 1", (2, 3, 1, 4, 5)),
    ],
)
def test_flatten(options, expected):
    x = counting(2, 3, 4, 5)
    y = build(one("Flatten", f"flatten_param {{ {options} }}"), x.shape)(x)
    np.testing.assert_array_equal(y.numpy(), x.numpy().reshape(expected))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("shape { dim: 0 dim: -1 }", (2, 12)),
        ("shape { dim: 0 dim: 0 dim: 2 dim: -1 }", (2, 3, 2, 2)),
        ("shape { dim: 2 dim: 2 } axis: 2", (2, 3, 2, 2)),
        ("shape { dim: 2 dim: 2 } axis: -2", (2, 3, 2, 2)),
        ("shape { dim: 1 } axis: -1", (2, 3, 4, 1)),
        ("shape { dim: 1 dim: 1 } axis: 0 num_axes: 0", (1, 1, 2, 3, 4)),
        ("shape { dim: -1 } axis: 0 num_axes: 2", (6, 4)),
        ("shape { dim: 24 }", (24,)),
    ],
)
def test_reshape(options, expected):
    x = counting(2, 3, 4)
    y = build(one("Reshape", f"reshape_param {{ {options} }}"), x.shape)(x)
    np.testing.assert_array_equal(y.numpy(), x.numpy().reshape(expected))


def test_reshape_of_a_scalar_and_to_a_scalar():
    assert build(one("Reshape", "reshape_param { shape { dim: 1 dim: 1 } }"), ())(counting()).shape == (1, 1)
    assert build(one("Reshape", "reshape_param { shape { } }"), (1, 1))(counting(1, 1)).shape == ()


@pytest.mark.parametrize(("axis", "tiles"), [(0, 3), (1, 2), (-1, 4), (2, 1)])
def test_tile(axis, tiles):
    x = counting(2, 3, 4)
    y = build(one("Tile", f"tile_param {{ axis: {axis} tiles: {tiles} }}"), x.shape)(x)
    np.testing.assert_array_equal(y.numpy(), np.concatenate([x.numpy()] * tiles, axis))


# -- BatchReindex, Filter, Silence ----------------------------------------------------------------------------------
def test_batch_reindex_adds_up_the_gradients_of_repeated_samples():
    x = counting(3, 2).requires_grad_()
    layer = build(two("BatchReindex"), x.shape, (4,))
    y = layer(x, torch.tensor([2.0, 0.0, 2.0, 2.9]))
    np.testing.assert_array_equal(y.detach().numpy(), x.detach().numpy()[[2, 0, 2, 2]])
    y.backward(torch.tensor([[1.0, 2], [3, 4], [5, 6], [7, 8]], dtype=torch.float64))
    np.testing.assert_array_equal(x.grad.numpy(), [[3, 4], [0, 0], [13, 16]])


@pytest.mark.parametrize("index", [-1.0, -0.5, 3.0, 1e30, float("inf"), float("nan")])
def test_batch_reindex_refuses_indices_outside_the_batch(index):
    layer = build(two("BatchReindex"), (3, 2), (2,))
    with pytest.raises(
        LayerError, match=re.escape(f"indices must be from 0 to 2 (the batch holds 3 samples), got {index:g}")
    ):
        layer(counting(3, 2), torch.tensor([0.0, index]))


def test_filter_passes_chosen_samples_and_their_gradients():
    x = counting(4, 2).requires_grad_()
    layer = build(two("Filter"), x.shape, (4, 1))
    y = layer(x, torch.tensor([[0.0], [0.5], [0.0], [-1.0]]))[0]
    np.testing.assert_array_equal(y.detach().numpy(), x.detach().numpy()[[1, 3]])
    y.backward(torch.tensor([[1.0, 2], [3, 4]], dtype=torch.float64))
    np.testing.assert_array_equal(x.grad.numpy(), [[0, 0], [1, 2], [0, 0], [3, 4]])


def test_filter_of_nothing_is_empty():
    x = counting(3, 2, 2).requires_grad_()
    (y,) = build(two("Filter"), x.shape, (3,))(x, torch.zeros(3))
    assert y.shape == (0, 2, 2)
    y.sum().backward()
    assert not x.grad.any()


def test_index_bottoms_take_no_gradient():
    assert not build(two("Filter"), (3, 2), (3,)).allows_forced_backward(1)
    assert not build(two("BatchReindex"), (3, 2), (3,)).allows_forced_backward(1)
    selector = torch.ones(3, requires_grad=True)
    with pytest.raises(LayerError, match="cannot back-propagate to its selector; set propagate_down to false"):
        build(two("Filter"), (3, 2), (3,))(counting(3, 2), selector)
    with pytest.raises(LayerError, match="cannot back-propagate to its"):
        build(two("BatchReindex"), (3, 2), (3,))(counting(3, 2), selector)


def test_silence_gives_nothing():
    layer = build('type: "Silence" bottom: "a" bottom: "b"', (2, 3), (4,))
    assert layer(counting(2, 3), counting(4)) == ()


# -- refusals -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (two("Concat"), [(2, 3), (3, 3)], "(Concat): bottoms may differ on axis 1 only, got 2 x 3 and 3 x 3"),
        (two("Concat"), [(2, 3), (2, 3, 1)], "bottoms may differ on axis 1 only, got 2 x 3 and 2 x 3 x 1"),
        (two("Concat", "concat_param { axis: 2 }"), [(2, 3), (2, 3)], "axis 2 is out of range"),
        (two("Concat", "concat_param { concat_dim: 2 }"), [(2, 3)] * 2, "concat_dim 2 is out of range for a bottom of"),
        (
            two("Concat", "concat_param { concat_dim: 1 axis: 1 }"),
            [(2, 3)] * 2,
            "takes either axis or its older name concat_dim, got both (1 and 1)",
        ),
        (
            cut(4),
            [(2, 6)],
            "(Slice): cannot cut axis 1 of a bottom of shape 2 x 6 into 4 equal pieces; give slice_point",
        ),
        (cut(3, "slice_point: 1"), [(2, 6)], "3 tops need 2 slice_point entries, got 1"),
        (cut(3, "slice_point: 3 slice_point: 3"), [(2, 6)], "slice_point must increase strictly within axis 1"),
        (cut(2, "slice_point: 7"), [(2, 6)], "got 7"),
        (cut(2, "slice_point: 0"), [(2, 6)], "got 0"),
        (cut(2, "slice_dim: 1 axis: 1"), [(2, 6)], "takes either axis or its older name slice_dim"),
        ('type: "Split" bottom: "x" top: "x" top: "y"', [(2,)], "(Split): cannot run in place, got 'x'"),
        ('type: "Flatten" bottom: "x" top: "x"', [(2, 2)], "(Flatten): cannot run in place"),
        ('type: "Reshape" bottom: "x" top: "x"', [(2, 2)], "(Reshape): cannot run in place"),
        (one("Flatten"), [(4,)], "axis 1 is out of range for a bottom of shape 4"),
        (one("Flatten", "flatten_param { end_axis: 4 }"), [(2, 3)], "end_axis 4 is out of range"),
        (one("Flatten", "flatten_param { axis: 2 end_axis: 0 }"), [(2, 3, 4)], "axis must not lie beyond end_axis"),
        (
            one("Reshape", "reshape_param { shape { dim: -1 dim: -1 } }"),
            [(2, 3)],
            "takes positive dims, 0 (copy) and at most one -1 (infer), got -1 x -1",
        ),
        (one("Reshape", "reshape_param { shape { dim: -2 } }"), [(2, 3)], "got -2"),
        (
            one("Reshape", "reshape_param { shape { dim: 4 dim: -1 } }"),
            [(2, 3)],
            "cannot infer the -1 of 4 x -1: a bottom of shape 2 x 3 has 6 values, which 4 does not divide",
        ),
        (
            one("Reshape", "reshape_param { shape { dim: 5 } }"),
            [(2, 3)],
            "must keep the number of values, got a bottom of shape 2 x 3 (6) and a new shape 5 (5)",
        ),
        (one("Reshape", "reshape_param { axis: 3 }"), [(2, 3)], "axis 3 is out of range for a bottom of shape 2 x 3"),
        (one("Reshape", "reshape_param { axis: -4 }"), [(2, 3)], "axis -4 is out of range"),
        (
            one("Reshape", "reshape_param { num_axes: -2 }"),
            [(2, 3)],
            "num_axes must be at least 0, or -1 for all, got -2",
        ),
        (one("Reshape", "reshape_param { axis: 1 num_axes: 2 }"), [(2, 3)], "axis 1 with num_axes 2 is out of range"),
        (
            one("Reshape", "reshape_param { shape { dim: 2 dim: 3 dim: 0 } }"),
            [(2, 3)],
            "a dim of 0 copies axis 2, which a bottom of shape 2 x 3 does not have",
        ),
        (one("Tile"), [(2, 3)], "(Tile): tile_param.tiles must be at least 1, got none"),
        (one("Tile", "tile_param { tiles: -1 }"), [(2, 3)], "tile_param.tiles must be at least 1, got -1"),
        (one("Tile", "tile_param { tiles: 2 axis: 5 }"), [(2, 3)], "axis 5 is out of range"),
        (two("BatchReindex"), [(2, 3), (2, 1)], "(BatchReindex): needs indices of 1 axis, got shape 2 x 1"),
        (two("BatchReindex"), [(), (2,)], "needs samples of at least 1 axis, got a scalar ()"),
        (
            two("Filter"),
            [(2, 3), (2, 2)],
            "(Filter): needs a selector of one value per sample (N, or N x 1 x ...), got 2 x 2",
        ),
        (two("Filter"), [(2, 3), ()], "needs a selector of one value per sample"),
        (two("Filter"), [(2, 3), (4,)], "bottoms and selector need the same number of samples, got 2 x 3 and 4"),
        (
            two("Filter", 'top: "z"'),
            [(2, 3), (2,)],
            "gives one top per bottom but the last, the selector: 1, got 2 top(s)",
        ),
        (one("Silence"), [(2,)], "(Silence): gives 0 top blob(s), got 1"),
    ],
)
def test_refusals(text, shapes, message):
    with pytest.raises(LayerError, match=re.escape(message)):
        build(text, *shapes)
