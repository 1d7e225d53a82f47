"""Nets whose data is not here: what the layers say about it is enough."""

from __future__ import annotations

import pytest

from poseidon.errors import UsageError
from poseidon.net import Net
from poseidon.run.feeds import replace_missing_data
from poseidon.spec import parse_net

REST = """
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 5 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
"""


def feed(kind: str, options: str, transform: str = "") -> str:
    return (
        f'layer {{ name: "feed" type: "{kind}" top: "data" top: "label" {options} transform_param {{ {transform} }} }}'
    )


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (feed("Data", 'data_param { source: "none" batch_size: 6 }', "crop_size: 12"), (6, 3, 12, 12)),
        (
            feed("Data", 'data_param { source: "none" batch_size: 6 }', "crop_size: 12 mean_value: 1 mean_value: 2"),
            (6, 2, 12, 12),
        ),
        (feed("Data", 'data_param { source: "none" batch_size: 1 }', "crop_size: 3 force_gray: true"), (1, 1, 3, 3)),
        (
            feed("ImageData", 'image_data_param { source: "none" batch_size: 2 new_height: 5 new_width: 7 }'),
            (2, 3, 5, 7),
        ),
        (
            feed(
                "ImageData",
                'image_data_param { source: "none" batch_size: 2 new_height: 5 new_width: 7 is_color: false }',
                "crop_size: 4",
            ),
            (2, 1, 4, 4),
        ),
        (
            feed("WindowData", 'window_data_param { source: "none" batch_size: 8 }', "crop_size: 9"),
            (8, 3, 9, 9),
        ),
    ],
)
def test_shapes_are_known(text, shape):
    source = parse_net(text + REST)
    assert replace_missing_data(source) == ["feed"]
    net = Net(source, phase="TRAIN", seed=1, device="meta")
    assert tuple(net.graph.shapes["data"]) == shape
    assert tuple(net.graph.shapes["label"]) == shape[:1]


def test_of_what_says_too_little_somebody_else_has_to():
    text = feed("Data", 'data_param { source: "none" batch_size: 6 }') + REST
    problem = r"layer 'feed' reads 'none', which is not here, .* as in --image=1x28x28"
    with pytest.raises(UsageError, match=problem):
        replace_missing_data(parse_net(text))
    source = parse_net(text)
    assert replace_missing_data(source, (1, 28, 20)) == ["feed"]
    net = Net(source, phase="TRAIN", seed=1, device="meta")
    assert tuple(net.graph.shapes["data"]) == (6, 1, 28, 20)


def test_what_is_here_is_left(tmp_path):
    text = feed("Data", f'data_param {{ source: "{tmp_path}" batch_size: 6 }}', "crop_size: 12")
    source = parse_net(text + REST)
    assert replace_missing_data(source) == []
