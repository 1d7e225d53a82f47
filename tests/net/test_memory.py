"""Nets that no memory could hold are refused by name, before anything is allocated."""

from __future__ import annotations

import re

import pytest
import torch

from poseidon.errors import LayerError
from poseidon.net import Net, Stepwise
from poseidon.net.memory import MemoryBudget, device_bytes

INPUT = 'layer {{ name: "in" type: "Input" top: "x" input_param {{ shape {{ {} }} }} }}'


def net(*extents: int, layers: str = "") -> Net:
    dims = " ".join(f"dim: {extent}" for extent in extents)
    return Net.from_text(INPUT.format(dims) + layers)


def product(num_output: int, name: str = "fc", bottom: str = "x") -> str:
    return (
        f'layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{name}" '
        f'inner_product_param {{ num_output: {num_output} weight_filler {{ type: "xavier" }} }} }}'
    )


@pytest.mark.parametrize(
    ("extents", "layers", "message"),
    [
        ((1 << 30, 1 << 30), "", "'in' (Input): top 'x' of shape 1073741824 x 1073741824 would need 4,194,304.0 TiB"),
        (
            (1 << 31, 2),
            "",
            "top 'x' of shape 2147483648 x 2 would need an extent of 2147483648, expected 0 to 2147483647",
        ),
        ((1,) * 33, "", "would need 33 axes, expected at most 32"),
        ((0, *[(1 << 31) - 1] * 3), "", "would need no values, but extents too large to count with"),
        (
            (2, 1 << 20),
            product(1 << 30),
            "'fc' (InnerProduct): parameter 0 of shape 1073741824 x 1048576 would need 4,096.0 TiB",
        ),
        (
            (1, 1, 4, 4),
            'layer { name: "c" type: "Convolution" bottom: "x" top: "y" '
            "convolution_param { num_output: 1 kernel_size: 1 pad: 2000000000 stride: 2000000000 } }",
            "'c' (Convolution): the padded plane of shape 1 x 1 x 4000000004 x 4000000004 would need an extent",
        ),
        (
            (1, 1, 4, 4),
            'layer { name: "p" type: "Pooling" bottom: "x" top: "y" '
            "pooling_param { kernel_size: 1 stride: 2000000000 } }",
            "'p' (Pooling): the padded plane of shape 1 x 1 x 2000000001 x 2000000001 would need",
        ),
        (
            (0, 9, 6, 6),
            'layer { name: "p" type: "Pooling" bottom: "x" top: "y" '
            "pooling_param { pool: AVE kernel_size: 3 stride: 2147483648 pad: 1 round_mode: FLOOR } }",
            "kernel, stride and pad must be at most 2147483647, got 3 x 3, 2147483648 x 2147483648 and 1 x 1",
        ),
        (
            (0, 1, 4, 4),
            'layer { name: "c" type: "Im2col" bottom: "x" top: "y" '
            "convolution_param { kernel_size: 1 dilation: 4294967295 } }",
            "kernel size, stride, pad and dilation must be at most 2147483647, got 4294967295",
        ),
        (
            (1, 4),
            'layer { name: "t" type: "Tile" bottom: "x" top: "y" tile_param { tiles: 2000000000 } }'
            'layer { name: "u" type: "Tile" bottom: "y" top: "z" tile_param { axis: 0 tiles: 2000000000 } }',
            "'t' (Tile): top 'y' of shape 1 x 8000000000 would need an extent of 8000000000",
        ),
    ],
)
def test_what_cannot_be_is_refused(extents, layers, message):
    with pytest.raises(LayerError, match=re.escape(message)):
        net(*extents, layers=layers)


def test_parameters_are_counted_together():
    layers = "".join(product(1000, f"fc{i}") for i in range(3))
    context_bytes = 2 * (1000 * 1000 * 4 + 1000 * 4) + 10
    text = INPUT.format("dim: 2 dim: 1000") + layers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("poseidon.net.memory.device_bytes", lambda device: context_bytes)
        with pytest.raises(
            LayerError,
            match=r"'fc2'.*parameter 0 of shape 1000 x 1000 would need 3.8 MiB beside the 7.6 MiB of the parameters",
        ):
            Net.from_text(text)
        patch.setattr("poseidon.net.memory.device_bytes", lambda device: 2 * context_bytes)
        assert len(Net.from_text(text).learnable) == 6


def test_a_reshape_is_refused_too_and_changes_nothing():
    small = net(2, 3, layers=product(4))
    before = small.blob_shapes
    with pytest.raises(LayerError, match="top 'x' of shape 1073741824 x 1073741824"):
        small.reshape(x=(1 << 30, 1 << 30))
    assert small.blob_shapes == before
    run = Stepwise(small)
    assert run.forward() == 0.0


def test_empty_blobs_are_fine():
    empty = net(0, 3, layers=product(4))
    assert empty(x=torch.zeros(0, 3))["fc"].shape == (0, 4)


def test_tops_over_bottoms_of_another_shape():
    with pytest.raises(
        LayerError, match=r"cannot write its top 'x' of shape 2 x 4 over its bottom of shape 2 x 3; give the top a name"
    ):
        net(2, 3, layers=product(4, "fc").replace('top: "fc"', 'top: "x"'))


@pytest.mark.parametrize("options", ["min: 1 max: 0", "min: nan max: 1", "max: inf", "min: -3e38 max: 3e38"])
def test_uniform_fillers_need_a_range(options):
    filler = f'data_filler {{ type: "uniform" {options} }}'
    layer = f'layer {{ name: "d" type: "DummyData" top: "d" dummy_data_param {{ shape {{ dim: 2 }} {filler} }} }}'
    with pytest.raises(LayerError, match="uniform filler needs numbers min <= max"):
        Net.from_text(layer)()


def test_the_limit_is_what_the_machine_has():
    total = device_bytes(torch.device("cpu"))
    with open("/proc/meminfo") as file:
        physical = int(re.search(r"MemTotal: +(\d+) kB", file.read())[1]) << 10
    assert 1 << 28 < total <= physical * 1.01
    budget = MemoryBudget(total_bytes=100)
    assert budget.take((5, 5), 4) is None
    assert (
        budget.take((1,), 4)
        == "4 bytes beside the 100 bytes of the parameters before it, expected at most the 100 bytes there are"
    )
