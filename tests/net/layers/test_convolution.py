"""Convolution, Deconvolution, Im2col against loops over every output, kernel position and channel; what they refuse."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from poseidon.errors import LayerError
from tests.net.layers.build import build, one


def conv_text(type_name: str, options: str) -> str:
    return one(type_name, f"convolution_param {{ {options} }}")


TWICE = 'type: "Convolution" bottom: "a" bottom: "b" top: "y" top: "z"'


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def positions(sizes):
    return itertools.product(*(range(size) for size in sizes))


def source(output, tap, stride, pad, dilation):
    return tuple(o * s - p + t * d for o, t, s, p, d in zip(output, tap, stride, pad, dilation, strict=True))


def within(position, sizes) -> bool:
    return all(0 <= i < size for i, size in zip(position, sizes, strict=True))


def convolved(x, weight, bias, window, group, outputs):
    """y[n, o, ...] by its definition; x and weight with any number of spatial axes."""
    num, spatial = x.shape[0], x.shape[2:]
    per_group = weight.shape[0] // group
    y = np.zeros((num, weight.shape[0], *outputs))
    for n, out in itertools.product(range(num), range(weight.shape[0])):
        first = (out // per_group) * weight.shape[1]
        for place in positions(outputs):
            y[(n, out, *place)] = 0.0 if bias is None else bias[out]
            for tap in positions(weight.shape[2:]):
                at = source(place, tap, *window)
                if within(at, spatial):
                    for c in range(weight.shape[1]):
                        y[(n, out, *place)] += weight[(out, c, *tap)] * x[(n, first + c, *at)]
    return y


def deconvolved(x, weight, bias, window, group, outputs):
    """Every input spreads over its window."""
    num, channels, spatial = x.shape[0], x.shape[1], x.shape[2:]
    per_group = channels // group
    y = np.zeros((num, weight.shape[1] * group, *outputs))
    for n, c, place, tap in itertools.product(
        range(num), range(channels), list(positions(spatial)), list(positions(weight.shape[2:]))
    ):
        at = source(place, tap, *window)
        if within(at, outputs):
            for out in range(weight.shape[1]):
                target = (c // per_group) * weight.shape[1] + out
                y[(n, target, *at)] += weight[(c, out, *tap)] * x[(n, c, *place)]
    return y if bias is None else y + bias.reshape(-1, *[1] * len(outputs))


# -- values ---------------------------------------------------------------------------------------------------------
WINDOWS = [
    # spatial sizes, kernel, stride, pad, dilation, group
    ((7,), (3,), (2,), (1,), (2,), 1),
    ((5, 6), (3, 2), (2, 1), (1, 3), (1, 2), 2),
    ((3, 4, 3), (2, 3, 1), (1, 2, 1), (1, 0, 2), (2, 1, 1), 1),
    ((3, 2, 3, 2), (2, 1, 2, 2), (1, 2, 1, 1), (1, 0, 0, 1), (1, 1, 2, 1), 2),
    ((2, 2, 2, 1, 3), (1, 2, 2, 1, 2), (1, 1, 1, 1, 2), (0, 0, 1, 0, 0), (1, 1, 1, 1, 1), 1),
    ((), (), (), (), (), 2),
]


def options_of(kernel, stride, pad, dilation, group) -> str:
    words = [f"num_output: 4 group: {group}"]
    for name, values in (("kernel_size", kernel), ("stride", stride), ("pad", pad), ("dilation", dilation)):
        words += [f"{name}: {value}" for value in values]
    return " ".join(words)


@pytest.mark.parametrize(("sizes", "kernel", "stride", "pad", "dilation", "group"), WINDOWS)
def test_convolution_over_any_number_of_axes(sizes, kernel, stride, pad, dilation, group):
    x = normal(2, 2, *sizes)
    layer = build(conv_text("Convolution", options_of(kernel, stride, pad, dilation, group)), x.shape)
    assert layer.param_shapes == [(4, 2 // group, *kernel), (4,)]
    weight, bias = normal(4, 2 // group, *kernel), normal(4)
    layer.param(0).data.copy_(weight)
    layer.param(1).data.copy_(bias)
    y = layer(x).detach()
    outputs = [
        (size + 2 * p - (d * (k - 1) + 1)) // s + 1
        for size, k, s, p, d in zip(sizes, kernel, stride, pad, dilation, strict=True)
    ]
    expected = convolved(x.numpy(), weight.numpy(), bias.numpy(), (stride, pad, dilation), group, outputs)
    np.testing.assert_allclose(y.numpy(), expected, atol=1e-10)
    assert layer.reshape([tuple(x.shape)]) == [expected.shape]


@pytest.mark.parametrize(("sizes", "kernel", "stride", "pad", "dilation", "group"), WINDOWS)
def test_deconvolution_over_any_number_of_axes(sizes, kernel, stride, pad, dilation, group):
    pad = tuple(min(p, 1) for p in pad)
    x = normal(2, 2, *sizes)
    layer = build(conv_text("Deconvolution", options_of(kernel, stride, pad, dilation, group)), x.shape)
    assert layer.param_shapes == [(2, 4 // group, *kernel), (4,)]
    weight, bias = normal(2, 4 // group, *kernel), normal(4)
    layer.param(0).data.copy_(weight)
    layer.param(1).data.copy_(bias)
    y = layer(x).detach()
    outputs = [
        s * (size - 1) + d * (k - 1) + 1 - 2 * p
        for size, k, s, p, d in zip(sizes, kernel, stride, pad, dilation, strict=True)
    ]
    expected = deconvolved(x.numpy(), weight.numpy(), bias.numpy(), (stride, pad, dilation), group, outputs)
    np.testing.assert_allclose(y.numpy(), expected, atol=1e-10)
    assert layer.reshape([tuple(x.shape)]) == [expected.shape]


@pytest.mark.parametrize(("sizes", "kernel", "stride", "pad", "dilation", "group"), WINDOWS[:-1])
def test_im2col_over_any_number_of_axes(sizes, kernel, stride, pad, dilation, group):
    x = normal(2, 2, *sizes)
    layer = build(conv_text("Im2col", options_of(kernel, stride, pad, dilation, group)), x.shape)
    (shape,) = layer.reshape([tuple(x.shape)])
    expected = np.zeros(shape)
    for n, c, (row, tap) in itertools.product(range(2), range(2), enumerate(positions(kernel))):
        for place in positions(shape[2:]):
            at = source(place, tap, stride, pad, dilation)
            if within(at, sizes):
                expected[(n, c * int(np.prod(kernel)) + row, *place)] = x[(n, c, *at)]
    np.testing.assert_array_equal(layer(x).numpy(), expected)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_convolution_and_its_transpose_for_random_windows(data):
    """<W * x, y> = <x, Wᵀ * y> ties the two together; the loops tie Convolution to its definition."""
    kernel, stride, pad, dilation = (
        tuple(data.draw(st.integers(low, high)) for _ in range(2)) for low, high in ((1, 4), (1, 4), (0, 3), (1, 3))
    )
    sizes = tuple(data.draw(st.integers(1, 7)) for _ in range(2))
    group = data.draw(st.sampled_from([1, 2]))
    outputs = tuple(
        int((size + 2 * p - (d * (k - 1) + 1)) / s) + 1  # cut towards zero, like C
        for size, k, s, p, d in zip(sizes, kernel, stride, pad, dilation, strict=True)
    )
    x = normal(2, 2, *sizes)
    text = conv_text("Convolution", options_of(kernel, stride, pad, dilation, group))
    if min(outputs) < 1:
        with pytest.raises(LayerError, match="leaves nothing of a bottom"):
            build(text, x.shape)
        return
    layer = build(text, x.shape)
    weight = normal(4, 2 // group, *kernel)
    layer.param(0).data.copy_(weight)
    y = layer(x).detach()
    expected = convolved(x.numpy(), weight.numpy(), None, (stride, pad, dilation), group, outputs)
    np.testing.assert_allclose(y.numpy(), expected, atol=1e-10)
    seed = normal(*y.shape)
    spread = deconvolved(seed.numpy(), weight.numpy(), None, (stride, pad, dilation), group, sizes)
    np.testing.assert_allclose(float((y * seed).sum()), float((x.numpy() * spread).sum()), atol=1e-9)


def test_all_axes_before_the_channels_count_samples():
    x = normal(2, 3, 2, 5, 4)
    layer = build(conv_text("Convolution", "num_output: 3 kernel_size: 2 axis: 2"), x.shape)
    plain = build(conv_text("Convolution", "num_output: 3 kernel_size: 2"), (6, 2, 5, 4))
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), plain(x.reshape(6, 2, 5, 4)).reshape(2, 3, 3, 4, 3))


def test_several_bottoms_share_the_weights():
    a, b = normal(2, 3, 4, 4), normal(2, 3, 4, 4) + 1
    text = f"{TWICE} convolution_param {{ num_output: 2 kernel_size: 3 }}"
    layer = build(text, a.shape, b.shape)
    torch.nn.init.normal_(layer.param_owner(0))
    y, z = layer(a, b)
    (y.sum() + z.sum()).backward()
    both = layer.param_owner(0).grad.clone()
    layer.zero_grad()
    layer(a, a)[0].sum().backward()
    one_part = layer.param_owner(0).grad.clone()
    layer.zero_grad()
    layer(b, b)[0].sum().backward()
    torch.testing.assert_close(both, one_part + layer.param_owner(0).grad)


def test_bilinear_upsampling_keeps_a_plane_linear():
    x = torch.arange(5, dtype=torch.float64).expand(1, 2, 4, 5).clone()
    options = (
        'num_output: 2 group: 2 kernel_size: 4 stride: 2 pad: 1 bias_term: false weight_filler { type: "bilinear" }'
    )
    y = build(conv_text("Deconvolution", options), x.shape)(x)
    assert y.shape == (1, 2, 8, 10)
    inner = y[0, :, 1:-1, 1:-1].detach()
    torch.testing.assert_close(inner.diff(dim=-1), torch.full_like(inner[..., 1:], 0.5))


# -- memory ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("type_name", ["Convolution", "Deconvolution"])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_bottom_may_lie_in_memory_in_any_order(type_name, channels):
    x = normal(2, channels, 5, 6)
    layer = build(conv_text(type_name, "num_output: 3 kernel_size: 3 stride: 2"), x.shape)
    torch.nn.init.normal_(layer.param_owner(0))
    want = layer(x)
    seed = normal(*want.shape)
    (want_grad,) = torch.autograd.grad(want, layer.param_owner(0), seed)
    for other in (
        x.contiguous(memory_format=torch.channels_last),
        x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    ):
        y = layer(other)
        torch.testing.assert_close(y, want)
        (grad,) = torch.autograd.grad(y, layer.param_owner(0), seed.contiguous(memory_format=torch.channels_last))
        torch.testing.assert_close(grad, want_grad)


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ("num_output: 16 kernel_size: 3", (2, 3, 8, 8)),
        ("num_output: 16 kernel_size: 5", (8, 1, 8, 8)),
        ("num_output: 16 kernel_size: 1", (2, 3, 8, 8)),
        ("num_output: 16 kernel_size: 3 pad: 1", (1, 32, 2, 2)),  # more weights than bottom
    ],
)
def test_tops_come_channels_last_on_the_cpu(options, shape):
    x = torch.randn(shape)
    y = build(conv_text("Convolution", options), shape).float()(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert not y._is_view()  # the next layer may overwrite it, and autograd makes that dear for a view


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 1, 2, 2), (4, 5, 1, 1), (1, 2, 1, 6), (0, 3, 4, 4)])
@pytest.mark.parametrize("num_output", [1, 4])
def test_pointwise_convolution(bias, shape, num_output):
    x = normal(*shape).requires_grad_()
    options = f"num_output: {num_output} kernel_size: 1 bias_term: {str(bias).lower()}"
    layer = build(conv_text("Convolution", options), shape)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    y = layer(x)
    weight = layer.param(0).detach().numpy()[..., 0, 0]
    want = np.einsum("nchw,oc->nohw", x.detach().numpy(), weight)
    want += layer.param(1).detach().numpy()[:, None, None] if bias else 0
    np.testing.assert_allclose(y.detach().numpy(), want, atol=1e-12)
    seed = normal(*y.shape)
    y.backward(seed)
    np.testing.assert_allclose(x.grad.numpy(), np.einsum("nohw,oc->nchw", seed.numpy(), weight), atol=1e-12)
    want_weight = np.einsum("nohw,nchw->oc", seed.numpy(), x.detach().numpy())
    np.testing.assert_allclose(layer.param_owner(0).grad.numpy()[..., 0, 0], want_weight, atol=1e-12)
    if bias:
        np.testing.assert_allclose(layer.param_owner(1).grad.numpy(), seed.numpy().sum((0, 2, 3)), atol=1e-12)


def test_a_few_pixels_under_many_weights():
    """The memory order in which this runs is another one; values and gradients are those of the plain operator."""
    x = normal(1, 16, 3, 2).requires_grad_()
    for type_name, plain in (("Convolution", torch.conv2d), ("Deconvolution", torch.conv_transpose2d)):
        layer = build(conv_text(type_name, "num_output: 16 kernel_size: 3 stride: 2 pad: 1"), x.shape)
        torch.nn.init.normal_(layer.param_owner(0))
        got, want = layer(x), plain(x, layer.param(0), layer.param(1), 2, 1)
        torch.testing.assert_close(got, want)
        wanted = [x, layer.param_owner(0)]
        for a, b in zip(
            torch.autograd.grad(got.sin().sum(), wanted), torch.autograd.grad(want.sin().sum(), wanted), strict=True
        ):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("options", ["kernel_size: 1", "kernel_size: 1 kernel_size: 1 kernel_size: 1"])
def test_im2col_never_hands_out_its_bottom(options):
    axes = options.count(":")
    x = normal(2, 3, *[4] * (axes if axes > 1 else 1))
    y = build(conv_text("Im2col", options), x.shape)(x)
    assert torch.equal(x, y)
    assert x.data_ptr() != y.data_ptr()


def test_an_empty_batch_gives_an_empty_top():
    layer = build(conv_text("Convolution", "num_output: 3 kernel_size: 3"), (2, 2, 5, 5))
    assert layer(torch.zeros(0, 2, 5, 5, dtype=torch.float64)).shape == (0, 3, 3, 3)


@pytest.mark.parametrize("type_name", ["Convolution", "Deconvolution"])
def test_autocast(type_name):
    layer = build(conv_text(type_name, "num_output: 8 kernel_size: 3"), (2, 4, 6, 6)).float()
    torch.nn.init.normal_(layer.param_owner(0))
    x = torch.randn(2, 4, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    torch.testing.assert_close(y.float(), layer(x), atol=0.3, rtol=0.05)


# -- refusals -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ("kernel_size: 3", (2, 3, 5, 5), "convolution_param.num_output must be at least 1, got 0"),
        (
            "num_output: 2",
            (2, 3, 5, 5),
            "kernel_size must be given once, or once for each of the 2 spatial axes, got 0",
        ),
        (
            "num_output: 2 kernel_size: 0",
            (2, 3, 5, 5),
            "kernel size must be at least 1 along every spatial axis, got 0 x 0",
        ),
        (
            "num_output: 2 kernel_h: 3",
            (2, 3, 5, 5),
            "kernel size must be at least 1 along every spatial axis, got 3 x 0",
        ),
        ("num_output: 2 kernel_size: 3 kernel_h: 3", (2, 3, 5, 5), "give either kernel_size or kernel_h and kernel_w"),
        (
            "num_output: 2 kernel_h: 3 kernel_w: 3",
            (2, 3, 5),
            "kernel_h and kernel_w are for two spatial axes, got a bottom with 1",
        ),
        (
            "num_output: 2 kernel_size: 3 stride: 0",
            (2, 3, 5, 5),
            "stride must be at least 1 along every spatial axis, got 0 x 0",
        ),
        (
            "num_output: 2 kernel_size: 3 stride_h: 2",
            (2, 3, 5, 5),
            "stride must be at least 1 along every spatial axis, got 2 x 0",
        ),
        (
            "num_output: 2 kernel_size: 3 stride: 1 stride_h: 2",
            (2, 3, 5, 5),
            "give either stride or stride_h and stride_w",
        ),
        (
            "num_output: 2 kernel_size: 3 dilation: 0",
            (2, 3, 5, 5),
            "dilation must be at least 1 along every spatial axis",
        ),
        (
            "num_output: 2 kernel_size: 3 pad: 1 pad: 1 pad: 1",
            (2, 3, 5, 5),
            "pad must be given once, or once for each of the 2 spatial axes, got 3 values",
        ),
        (
            "num_output: 2 kernel_size: 3 group: 0",
            (2, 3, 5, 5),
            "group must divide the channels of bottom and top, got group 0",
        ),
        (
            "num_output: 4 kernel_size: 3 group: 2",
            (2, 3, 5, 5),
            "got group 2 for 3 input channels and num_output 4",
        ),
        ("num_output: 3 kernel_size: 3 group: 2", (2, 4, 5, 5), "got group 2 for 4 input channels and num_output 3"),
        (
            "num_output: 2 kernel_size: 3 axis: 4",
            (2, 3, 5, 5),
            "axis 4 is out of range for a bottom of shape 2 x 3 x 5 x 5",
        ),
        (
            "num_output: 2 kernel_size: 4",
            (2, 3, 3, 5),
            "a kernel of extent 4 x 4 with pad 0 x 0 leaves nothing of a bottom of shape 2 x 3 x 3 x 5: "
            "the top would be 0 x 2",
        ),
    ],
)
def test_refused_options(options, shape, message):
    with pytest.raises(LayerError, match=re.escape(message)) as caught:
        build(conv_text("Convolution", options), shape)
    assert str(caught.value).startswith("test.prototxt:7: layer 'L' (Convolution): ")


def test_a_padding_that_eats_the_deconvolved_top_is_refused():
    with pytest.raises(LayerError, match="the top would be 0 x 0"):
        build(conv_text("Deconvolution", "num_output: 2 kernel_size: 2 pad: 1"), (1, 2, 1, 1))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 4, 5, 5), "was built for 3 input channels, got a bottom of shape 2 x 4 x 5 x 5"),
        ((2, 3, 5), "was built for 2 spatial axes, got a bottom of shape 2 x 3 x 5 with 1 after axis 1"),
    ],
)
def test_refused_reshapes(shape, message):
    for type_name in ("Convolution", "Deconvolution"):
        layer = build(conv_text(type_name, "num_output: 6 kernel_size: 3 group: 3"), (2, 3, 5, 5))
        with pytest.raises(LayerError, match=re.escape(message)):
            layer.reshape([shape])


def test_bottoms_of_different_shapes_are_refused():
    text = f"{TWICE} convolution_param {{ num_output: 2 kernel_size: 1 }}"
    with pytest.raises(LayerError, match="all bottoms need one shape, got 2 x 3 x 4 x 4 and 2 x 3 x 4 x 5"):
        build(text, (2, 3, 4, 4), (2, 3, 4, 5))


def test_im2col_refusals():
    with pytest.raises(LayerError, match="needs spatial axes after axis 1, got a bottom of shape 2 x 3"):
        build(conv_text("Im2col", "kernel_size: 1"), (2, 3))
    with pytest.raises(LayerError, match="leaves nothing of a bottom of shape 2 x 3 x 2"):
        build(conv_text("Im2col", "kernel_size: 3"), (2, 3, 2))
    layer = build(conv_text("Im2col", "kernel_size: 2"), (2, 3, 4))
    with pytest.raises(LayerError, match="was built for 1 spatial axes, got a bottom of shape 2 x 3 x 4 x 4"):
        layer.reshape([(2, 3, 4, 4)])
