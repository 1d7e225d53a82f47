"""`import caffe`: arrays over the net's own memory, forward, backward, solvers, against Caffe's records."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import caffe
from poseidon.errors import UsageError
from tests.net.harness import BACKWARD, FORWARD, GOLDEN, keys_under

NET = GOLDEN / "nets" / "lenet_like"
SOLVER = GOLDEN / "solvers" / "sgd_fixed_momentum_l2"


def test_forward_and_backward_through_arrays():
    record = np.load(NET / "record.npz")
    net = caffe.Net(str(NET / "net.prototxt"), str(NET / "init.caffemodel"), caffe.TRAIN)
    for key in keys_under(record, "input/"):
        net.blobs[key[6:]].data[...] = record[key]
    net.forward()
    for key in keys_under(record, "blob/"):
        np.testing.assert_allclose(net.blobs[key[5:]].data, record[key], err_msg=key, **FORWARD)
    net.clear_param_diffs()
    net.backward()
    for key in keys_under(record, "param_diff/"):
        _, layer, index = key.split("/")
        np.testing.assert_allclose(net.params[layer][int(index)].diff, record[key], err_msg=key, **BACKWARD)


def test_an_array_taken_before_a_pass_shows_the_values_after_it():
    net = caffe.Net(str(NET / "net.prototxt"), caffe.TEST, weights=str(NET / "init.caffemodel"))
    name = net.outputs[-1]
    before = net.blobs[name].data
    address = before.ctypes.data
    for blob in net.inputs:
        net.blobs[blob].data[...] = 1
    net.forward()
    first = before.copy()
    assert first.any()
    net.blobs[net.inputs[0]].data[...] = -1
    net.forward()
    assert not np.array_equal(before, first)
    assert net.blobs[name].data.ctypes.data == address


def test_parameters_are_edited_in_place():
    net = caffe.Net(str(NET / "net.prototxt"), caffe.TEST)
    layer = next(iter(net.params))
    net.params[layer][0].data[...] = 0
    net.params[layer][1].data[...] = 3
    net.forward()
    np.testing.assert_array_equal(net.blobs[layer].data, 3)


def test_a_solver_leaves_the_update_in_the_diff(tmp_path, monkeypatch):
    for path in SOLVER.iterdir():
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    record = np.load("record.npz")
    solver = caffe.get_solver("solver.prototxt")
    solver.net.copy_from("init.caffemodel")
    layer = next(iter(solver.net.params))
    before = solver.net.params[layer][0].data.copy()
    solver.step(1)
    assert solver.iter == 1
    after = solver.net.params[layer][0].data
    np.testing.assert_allclose(after, record[f"param/{layer}/0"][0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(before - solver.net.params[layer][0].diff, after, rtol=1e-6, atol=1e-7)


def test_what_a_net_without_memory_data_says():
    net = caffe.Net(str(NET / "net.prototxt"), caffe.TEST)
    with pytest.raises(UsageError, match="needs a net with a MemoryData layer"):
        net.set_input_arrays(np.zeros((1, 1, 1, 1), "f4"), np.zeros(1, "f4"))
