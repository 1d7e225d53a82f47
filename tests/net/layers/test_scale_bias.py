"""Scale and Bias against element-by-element loops, for every axis and extent; what they refuse; Embed and Parameter."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from poseidon.errors import LayerError
from poseidon.net.net import Net
from poseidon.spec import parse_net
from tests.net.layers.build import build, one

SHAPE = (2, 3, 4)


def values(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def operand_at(operand: np.ndarray, place: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Where in the operand the element of the bottom at `place` looks."""
    return place[axis : axis + operand.ndim] if operand.ndim else ()


@pytest.mark.parametrize(
    ("axis", "num_axes"), [(0, 1), (1, 1), (2, 1), (-1, 1), (0, 2), (1, 2), (-2, -1), (0, -1), (0, 3), (1, 0)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_scale_by_a_blob(axis, num_axes, bias):
    options = f"scale_param {{ axis: {axis} num_axes: {num_axes} bias_term: {str(bias).lower()} }}"
    layer = build(one("Scale", options), SHAPE)
    start = axis % 3
    extent = SHAPE[start:] if num_axes == -1 else SHAPE[start : start + num_axes]
    assert layer.param_shapes == [extent] * (1 + bias)
    with torch.no_grad():
        for index in range(layer.num_params):
            layer.param(index).copy_(values(*extent, seed=index + 3))
    x = values(*SHAPE).requires_grad_()
    y = layer(x)
    seed = values(*SHAPE, seed=2)
    grads = torch.autograd.grad(y, [x, *layer.parameters()], seed)
    scale = layer.param(0).detach().numpy()
    shift = layer.param(1).detach().numpy() if bias else np.zeros(extent)
    expected, d_x = np.empty(SHAPE), np.empty(SHAPE)
    d_scale, d_shift = np.zeros(extent), np.zeros(extent)
    for place in np.ndindex(*SHAPE):
        at = operand_at(scale, place, start)
        expected[place] = scale[at] * x.detach()[place] + shift[at]
        d_x[place] = scale[at] * seed[place]
        d_scale[at] += float(x.detach()[place] * seed[place])
        d_shift[at] += float(seed[place])
    np.testing.assert_allclose(y.detach().numpy(), expected)
    for got, want in zip(grads, [d_x, d_scale, d_shift], strict=False):
        np.testing.assert_allclose(got.numpy(), want, atol=1e-12)


@pytest.mark.parametrize(("axis", "shape"), [(0, (2,)), (1, (3, 4)), (-1, (4,)), (0, (2, 3, 4)), (1, ())])
def test_two_bottoms(axis, shape):
    x, operand = values(*SHAPE).requires_grad_(), values(*shape, seed=5).requires_grad_()
    bottoms = f'bottom: "x" bottom: "s" top: "y" scale_param {{ axis: {axis} }} bias_param {{ axis: {axis} }}'
    scale = build(f'type: "Scale" {bottoms}', SHAPE, shape)
    bias = build(f'type: "Bias" {bottoms}', SHAPE, shape)
    product, total = np.empty(SHAPE), np.empty(SHAPE)
    for place in np.ndindex(*SHAPE):
        at = operand_at(operand.detach().numpy(), place, axis % 3)
        product[place] = x.detach()[place] * operand.detach()[at]
        total[place] = x.detach()[place] + operand.detach()[at]
    np.testing.assert_allclose(scale(x, operand).detach().numpy(), product)
    np.testing.assert_allclose(bias(x, operand).detach().numpy(), total)
    assert torch.autograd.gradcheck(scale, (x, operand))
    assert torch.autograd.gradcheck(bias, (x, operand))


def test_in_place_bias_overwrites_and_differentiates():
    layer = build(one("Bias", "bias_param { filler { value: 2 } }"), SHAPE)
    layer.in_place = True
    x = values(*SHAPE).requires_grad_()
    fresh = x * 1
    y = layer(fresh)
    assert y.data_ptr() == fresh.data_ptr()
    np.testing.assert_allclose(y.detach().numpy(), x.detach().numpy() + 2)
    y.sum().backward()
    assert layer.param(0).grad.tolist() == [8.0, 8.0, 8.0]


@pytest.mark.parametrize(
    ("bottom", "operand", "top"),
    [
        (torch.bfloat16, torch.float32, torch.bfloat16),  # what autocast brings together
        (torch.float32, torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.float64, torch.float64),
    ],
)
def test_mixed_precision(bottom, operand, top):
    x, s = values(*SHAPE).to(bottom), values(3, seed=2).to(operand)
    y = build('type: "Scale" bottom: "x" bottom: "s" top: "y"', SHAPE, (3,))(x, s)
    assert y.dtype == top
    expected = x.double() * s.double()[:, None]
    torch.testing.assert_close(y.double(), expected, rtol=1e-2, atol=1e-2)


def test_no_samples_are_fine():
    layer = build(one("Scale", "scale_param { bias_term: true }"), (0, 3))
    assert layer(torch.zeros(0, 3, dtype=torch.float64)).shape == (0, 3)


@pytest.mark.parametrize("kind", ["Scale", "Bias"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("axis: 3", "axis 3 is out of range for a bottom of shape 2 x 3 x 4"),
        ("axis: -4", "axis -4 is out of range for a bottom of shape 2 x 3 x 4"),
        ("num_axes: -2", "num_axes must be at least 0, or -1 for all axes from `axis` on, got -2"),
        ("axis: 2 num_axes: 2", "axis 2 with num_axes 2 reaches past the last axis of a bottom of shape 2 x 3 x 4"),
    ],
)
def test_refusals(kind, options, message):
    with pytest.raises(LayerError, match=re.escape(message)):
        build(one(kind, f"{kind.lower()}_param {{ {options} }}"), SHAPE)


@pytest.mark.parametrize("kind", ["Scale", "Bias"])
@pytest.mark.parametrize("shape", [(3, 3), (3, 4, 1), (2,)])
def test_operands_must_fit(kind, shape):
    operand = " x ".join(map(str, shape))
    message = f"an operand of shape {operand} does not fit a bottom of shape 2 x 3 x 4 from axis 1 on"
    with pytest.raises(LayerError, match=re.escape(message)):
        build(f'type: "{kind}" bottom: "x" bottom: "s" top: "y"', SHAPE, shape)


def test_blobs_keep_their_shape_when_the_net_is_reshaped():
    layer = build(one("Scale"), SHAPE)
    assert layer.reshape([(7, 3, 1)]) == [(7, 3, 1)]
    with pytest.raises(LayerError, match=re.escape("an operand of shape 3 does not fit a bottom of shape 2 x 5")):
        layer.reshape([(2, 5)])


# -- Embed ----------------------------------------------------------------------------------------------------------
def embed(options: str = "", shape: tuple[int, ...] = (2, 3)):
    return build(one("Embed", f"embed_param {{ num_output: 2 input_dim: 4 {options} }}"), shape)


def test_embed_adds_up_the_gradients_of_repeated_rows():
    layer = embed("weight_filler { type: 'gaussian' }")
    indices = torch.tensor([[0, 3, 3], [1, 3, 0]]).double()
    y = layer(indices)
    seed = values(2, 3, 2)
    table, bias = torch.autograd.grad(y, list(layer.parameters()), seed)
    expected = np.zeros((4, 2))
    for place in np.ndindex(2, 3):
        np.testing.assert_allclose(y.detach()[place].numpy(), layer.param(0)[int(indices[place])].detach().numpy())
        expected[int(indices[place])] += seed[place].numpy()
    np.testing.assert_allclose(table.numpy(), expected)
    np.testing.assert_allclose(bias.numpy(), seed.sum((0, 1)).numpy())


def test_embed_gives_only_the_rows_read_when_asked():
    layer = embed("bias_term: false")
    indices = torch.tensor([[0, 3, 3], [0, 3, 0]]).double()
    layer(indices).sum().backward()
    dense = layer.param(0).grad.clone()
    layer.param(0).grad = None
    layer.gives_rows = True
    layer(indices).sum().backward()
    rows = layer.param(0).grad
    assert rows.is_sparse
    assert rows.coalesce().indices().tolist() == [[0, 3]]
    torch.testing.assert_close(rows.to_dense(), dense)


@pytest.mark.parametrize(("index", "shown"), [(4.0, 4), (-1.0, -1), (1e6, 1000000)])
def test_embed_names_an_index_outside_the_table(index, shown):
    with pytest.raises(LayerError, match=f"index {shown} is outside the table; input_dim 4 admits 0 to 3"):
        embed()(torch.tensor([[0.0, 1.0, index], [2.0, 3.0, 0.0]]))


def test_embed_accepts_an_empty_bottom():
    assert embed(shape=(0, 3))(torch.zeros(0, 3)).shape == (0, 3, 2)


def test_embed_refuses_a_gradient_to_its_indices():
    with pytest.raises(LayerError, match="cannot back-propagate"):
        embed()(torch.zeros(2, 3, requires_grad=True))


@pytest.mark.parametrize(("options", "field"), [("input_dim: 4", "num_output"), ("num_output: 4", "input_dim")])
def test_embed_needs_its_sizes(options, field):
    with pytest.raises(LayerError, match=rf"embed_param.{field} must be at least 1, got 0"):
        build(one("Embed", f"embed_param {{ {options} }}"), (2,))


# -- Parameter ------------------------------------------------------------------------------------------------------
def test_parameter_is_the_top_and_learns():
    text = """
        layer { name: "p" type: "Parameter" top: "p" parameter_param { shape { dim: 2 dim: 3 } } }
        layer { name: "s" type: "Power" bottom: "p" top: "q" power_param { scale: 3 } loss_weight: 1 }
    """
    net = Net(parse_net(text), phase="TRAIN", seed=1)
    net().loss.backward()
    assert net.params["p"][0].grad.tolist() == [[3.0] * 3] * 2


def test_parameter_refuses_a_negative_shape():
    with pytest.raises(LayerError, match=re.escape("parameter_param.shape cannot be negative, got 2 x -1")):
        build('type: "Parameter" top: "p" parameter_param { shape { dim: 2 dim: -1 } }')
