"""Windows of any size, stride and padding over planes of any size: out of Caffe and into it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from poseidon.convert.comparison import run_net
from poseidon.convert.extents import Extents
from poseidon.convert.inputs import random_inputs
from poseidon.convert.steps import outputs_of
from poseidon.convert.to_caffe.from_torch import record
from poseidon.errors import ConvertError, LayerError
from poseidon.net import Net
from poseidon.spec import parse_net
from tests.convert.harness import close, run_as_onnx, run_as_torch

small = st.integers(1, 5)
sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))
pairs = st.tuples(small, small)
pads = st.tuples(st.integers(0, 4), st.integers(0, 4))


def net_of(plane: tuple[int, int], layer: str) -> Net:
    source = f"""
layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 2 dim: 4 dim: {plane[0]} dim: {plane[1]} }} }} }}
layer {{ name: "y" bottom: "x" top: "y" {layer} }}
"""
    try:
        return Net(parse_net(source), phase="TEST", seed=1)
    except LayerError:
        assume(False)
        raise


def check(net: Net) -> None:
    extents = Extents(net.graph)
    inputs = random_inputs(net, extents.resized(batch=3))
    want = run_net(net, inputs, list(outputs_of(net)))
    for run in (run_as_onnx, run_as_torch):
        close(run(net, extents, [inputs])[0], want)


@settings(max_examples=40)
@given(
    sizes,
    st.sampled_from(["MAX", "AVE", "STOCHASTIC"]),
    pairs,
    pairs,
    pads,
    st.sampled_from(["CEIL", "FLOOR"]),
    st.booleans(),
)
def test_pooling(plane, method, kernel, stride, pad, rounding, mask):
    options = f"kernel_h: {kernel[0]} kernel_w: {kernel[1]} stride_h: {stride[0]} stride_w: {stride[1]}"
    options += f" pad_h: {pad[0]} pad_w: {pad[1]} pool: {method} round_mode: {rounding}"
    second = 'top: "mask"' if mask and method == "MAX" else ""
    check(net_of(plane, f'type: "Pooling" {second} pooling_param {{ {options} }}'))


@settings(max_examples=40)
@given(sizes, st.sampled_from(["Convolution", "Deconvolution"]), pairs, pairs, pads, pairs, st.sampled_from([1, 2, 4]))
def test_convolution(plane, kind, kernel, stride, pad, dilation, group):
    options = f"kernel_h: {kernel[0]} kernel_w: {kernel[1]} stride_h: {stride[0]} stride_w: {stride[1]}"
    options += f" pad_h: {pad[0]} pad_w: {pad[1]} dilation: {dilation[0]} dilation: {dilation[1]}"
    options += f' group: {group} num_output: 8 weight_filler {{ type: "xavier" }} bias_filler {{ value: 0.3 }}'
    check(net_of(plane, f'type: "{kind}" convolution_param {{ {options} }}'))


class Call(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@settings(max_examples=50)
@given(sizes, pairs, pairs, pads, st.booleans(), st.booleans(), st.booleans())
def test_pooling_of_torch(plane, kernel, stride, pad, ceil, average, counted):
    """The same numbers, or a refusal; never other numbers."""

    def pool(x):
        if average:
            return F.avg_pool2d(x, kernel, stride, pad, ceil_mode=ceil, count_include_pad=counted)
        return F.max_pool2d(x, kernel, stride, pad, ceil_mode=ceil)

    x = torch.randn(2, 3, *plane, generator=torch.Generator().manual_seed(1))
    try:
        want = pool(x)
    except RuntimeError:  # torch's own limits
        assume(False)
        raise
    try:
        net, (output,) = record(Call(pool), {"x": tuple(x.shape)})
    except ConvertError:  # Caffe has other windows
        event("refused")
        return
    event("converted")
    close({"y": net.built()({"x": x})[output].numpy()}, {"y": want.numpy()})
