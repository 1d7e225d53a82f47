"""Blobs as pycaffe shows them: a net's activations and a layer's parameters as arrays over their own memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from poseidon.errors import LayerError
from poseidon.net.array_blob import NetBlob, ParamBlob, extents
from poseidon.net.blob import Blob
from poseidon.net.net import Net

TEXT = """
    layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
    layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" param { name: "w" }
            inner_product_param { num_output: 4 bias_term: false } }
    layer { name: "b" type: "InnerProduct" bottom: "x" top: "b" param { name: "w" share_mode: PERMISSIVE }
            inner_product_param { num_output: 4 bias_term: false transpose: true } }
"""


def test_a_nets_blob_keeps_its_memory_only_while_an_array_shows_it():
    blob = Blob("x", torch.zeros(2, 3))
    face = NetBlob(blob)
    view = face.data[1]
    blob.data = torch.ones(2, 3)
    assert view.tolist() == [1, 1, 1]
    address = face.data.ctypes.data
    del view
    fresh = torch.full((2, 3), 2.0)
    blob.data = fresh
    assert face.data.ctypes.data == fresh.data_ptr() != address


def test_results_already_in_that_memory_are_not_copied():
    blob = Blob("x", torch.zeros(2, 3))
    array = NetBlob(blob).data
    same = torch.from_numpy(array)
    same += 1
    blob.data = same
    assert array.ctypes.data == blob.data.data_ptr()
    blob.data = same.t().contiguous().t()  # the same values in another order of memory
    assert array.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert array.ctypes.data == blob.data.data_ptr()


def test_channels_last_results_are_shown_in_their_logical_order():
    value = torch.arange(24.0).view(1, 2, 3, 4)
    blob = Blob("x", value.contiguous(memory_format=torch.channels_last))
    array = NetBlob(blob).data
    np.testing.assert_array_equal(array, value.numpy())
    array[0, 0, 0, 0] = 9
    assert blob.data[0, 0, 0, 0] == 9


def test_reshaping():
    blob = Blob("x", torch.arange(6.0).view(2, 3))
    face = NetBlob(blob)
    face.diff[...] = 1
    face.reshape(3, 2)
    assert face.data.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert face.diff.shape == (3, 2)
    face.reshape(*np.array([1, 4]))
    assert (face.shape, face.num, face.channels, face.height, face.count) == ((1, 4), 1, 4, 1, 4)
    with pytest.raises(ValueError, match="cannot be negative"):
        extents((1, -1))


def test_parameters_show_their_owner_in_their_own_shape():
    net = Net.from_text(TEXT)
    first, second = (ParamBlob(net.layers[name], 0) for name in "ab")
    assert (first.shape, second.shape) == ((4, 3), (3, 4))
    first.data[...] = np.arange(12).reshape(4, 3)
    assert second.data.tolist() == np.arange(12).reshape(3, 4).tolist()
    second.diff[...] = 2
    assert net.params["a"][0].grad.tolist() == [[2, 2, 2]] * 4
    net.params["a"][0].grad = torch.arange(12.0).view(3, 4).t()  # as some backward passes leave it
    assert first.diff.tolist() == np.arange(12).reshape(3, 4).T.tolist()
    first.reshape(4, 3)
    with pytest.raises(LayerError, match="parameter 0 has shape \\(4, 3\\) and keeps it"):
        first.reshape(12)
