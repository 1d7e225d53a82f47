"""HostBlob: shapes, memory and Caffe's old names, as code written for pycaffe expects them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from poseidon.net.host_blob import BlobList, HostBlob


def test_arrays_are_zeros_of_the_shape_until_written():
    blob = HostBlob((2, 3))
    assert blob.data.tolist() == blob.diff.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert blob.data.dtype == np.float32
    blob.data[0] = 5
    assert blob.data[0].tolist() == [5, 5, 5]


def test_reshape_keeps_values_in_memory_order():
    blob = HostBlob((2, 3))
    blob.data[...] = np.arange(6).reshape(2, 3)
    blob.reshape(3, 2)
    assert blob.data.tolist() == [[0, 1], [2, 3], [4, 5]]
    blob.reshape(2)
    assert blob.data.tolist() == [0, 1]
    blob.reshape(4)
    assert blob.data.tolist() == [0, 1, 0, 0]
    blob.reshape()
    assert blob.shape == ()
    assert blob.count == 1
    with pytest.raises(ValueError, match="cannot be negative"):
        blob.reshape(2, -1)


def test_old_names_of_the_axes():
    blob = HostBlob((2, 3))
    assert (blob.num, blob.channels, blob.height, blob.width, blob.count) == (2, 3, 1, 1, 6)
    with pytest.raises(ValueError, match="at most 4 axes"):
        _ = HostBlob((1, 1, 1, 1, 1)).num


def test_a_tensor_is_shown_in_its_own_memory_and_a_diff_is_copied():
    data, diff = torch.zeros(2, 2), torch.ones(2, 2)
    blob = HostBlob()
    blob.show(data, diff)
    blob.data[0, 0] = 3
    blob.diff[0, 0] = 7
    assert data[0, 0] == 3
    assert diff[0, 0] == 1


def test_what_other_memory_got_is_written_back_only_if_it_changed():
    half = torch.zeros(2, dtype=torch.bfloat16)
    blob = HostBlob()
    blob.show(half)
    version = half._version
    blob.write_back(half)
    assert half._version == version
    blob.data[1] = 2
    blob.write_back(half)
    assert half.tolist() == [0, 2]


def test_copies_do_not_share_memory():
    blob = HostBlob((2,), torch.float64)
    data, diff = blob.data_tensor(torch.empty(0)), blob.diff_tensor(torch.empty(0, dtype=torch.float64))
    blob.data[...] = blob.diff[...] = 1
    assert (data.dtype, data.tolist()) == (torch.float32, [0, 0])
    assert (diff.dtype, diff.tolist()) == (torch.float64, [0, 0])


def test_blob_list():
    blobs = BlobList()
    blobs.add_blob(2, 3)
    blobs.add_blob(4)
    assert [blob.shape for blob in blobs] == [(2, 3), (4,)]
