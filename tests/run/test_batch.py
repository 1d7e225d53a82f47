"""Another batch size, set before a net is built."""

from __future__ import annotations

import pytest

from poseidon.errors import UsageError
from poseidon.net import Net
from poseidon.run.batch import set_batch
from poseidon.spec import parse_net


def changed(text: str, batch: int = 7):
    source = parse_net(text, "net.prototxt")
    set_batch(source, batch)
    return source


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("Data", "data_param"),
        ("ImageData", "image_data_param"),
        ("WindowData", "window_data_param"),
        ("HDF5Data", "hdf5_data_param"),
        ("MemoryData", "memory_data_param"),
    ],
)
def test_layers_with_a_batch_size(kind, field):
    source = changed(f'layer {{ name: "d" type: "{kind}" top: "x" top: "t" {field} {{ batch_size: 2 }} }}')
    assert getattr(source.net.layer[0], field).batch_size == 7


def test_inputs_and_dummies_along_their_first_axis():
    source = changed(
        """layer { name: "i" type: "Input" top: "x" top: "t" input_param { shape { dim: 2 dim: 3 } shape { dim: 2 } } }
           layer { name: "d" type: "DummyData" top: "u" dummy_data_param { num: 2 channels: 3 height: 4 width: 5 } }"""
    )
    assert Net(source, phase="TRAIN").blob_shapes == {"x": (7, 3), "t": (7,), "u": (7, 3, 4, 5)}


def test_old_input_fields():
    source = changed('input: "x" input_shape { dim: 2 dim: 3 }')
    assert Net(source, phase="TRAIN").blob_shapes == {"x": (7, 3)}


def test_net_that_nothing_feeds():
    with pytest.raises(UsageError, match=r"net.prototxt: cannot set a batch of 7: the net has no layer of Data, "):
        changed('layer { name: "p" type: "Parameter" top: "w" parameter_param { shape { dim: 3 } } }')
