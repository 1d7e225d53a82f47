"""caffe.Net as pycaffe's users know it: constructors, names, passes, memory, files."""

from __future__ import annotations

import gc
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

import caffe
from poseidon.errors import UsageError, WeightsError
from tests.caffe.nets import NUM_CLASSES, SIMPLE, build, equal_params, write


@pytest.fixture
def net(tmp_path):
    net = build(tmp_path, SIMPLE, caffe.TRAIN)
    net.blobs["label"].data[...] = np.arange(5).reshape(5, 1, 1, 1) % NUM_CLASSES
    return net


# -- building -------------------------------------------------------------------------------------------------------
def test_every_form_of_the_constructor(tmp_path, net):
    file, weights = str(tmp_path / "net.prototxt"), str(tmp_path / "weights")
    net.save(weights)
    same = [
        caffe.Net(file, weights, caffe.TRAIN),
        caffe.Net(file, caffe.TRAIN, weights=weights),
        caffe.Net(file, 0, weights=weights, level=0, stages=None),
        caffe.Net(file, caffe.TRAIN, 0, [], weights),
        caffe.Net(network_file=file, phase=caffe.TRAIN, weights=weights),
        caffe.Net(Path(file), caffe.TRAIN, weights=Path(weights)),
    ]
    assert all(equal_params(net, other) for other in same)
    assert not equal_params(net, caffe.Net(file, caffe.TRAIN))


def test_what_a_wrong_call_says(tmp_path):
    file = write(tmp_path, SIMPLE)
    with pytest.raises(TypeError, match=r"takes a file and a phase .* and no phase"):
        caffe.Net(file)
    with pytest.raises(TypeError, match="got 6 positional"):
        caffe.Net(file, caffe.TEST, 0, None, None, None)
    with pytest.raises(RuntimeError, match=r"Could not open file .*nowhere.* \(the net\)"):
        caffe.Net(str(tmp_path / "nowhere.prototxt"), caffe.TEST)
    with pytest.raises(RuntimeError, match=r"Could not open file .*nowhere.* \(its weights\)"):
        caffe.Net(file, caffe.TEST, weights=str(tmp_path / "nowhere.caffemodel"))


RULES = """
    layer { name: 'data' type: 'DummyData' top: 'data' dummy_data_param { shape { dim: 1 dim: 4 } } }
    layer { name: 'always' type: 'Power' bottom: 'data' top: 'always' }
    layer { name: 'low' type: 'Power' bottom: 'data' top: 'low' include { max_level: 0 } }
    layer { name: 'high' type: 'Power' bottom: 'data' top: 'high' include { min_level: 1 } }
    layer { name: 'a' type: 'Power' bottom: 'data' top: 'a' include { stage: 'A' } }
    layer { name: 'both' type: 'Power' bottom: 'data' top: 'both' include { stage: 'A' stage: 'B' } }
    layer { name: 'either' type: 'Power' bottom: 'data' top: 'either' include { stage: 'A' } include { stage: 'B' } }
"""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["always", "low"]),
        ({"level": 1}, ["always", "high"]),
        ({"stages": ["A"]}, ["always", "low", "a", "either"]),
        ({"stages": ["B"], "level": 2}, ["always", "high", "either"]),
        ({"stages": ["A", "B"]}, ["always", "low", "a", "both", "either"]),
    ],
)
def test_levels_and_stages(tmp_path, options, expected):
    net = build(tmp_path, RULES, **options)
    assert [name for name in net.blobs if not name.startswith("data")] == expected


# -- names ----------------------------------------------------------------------------------------------------------
def test_names_and_numbers(net):
    assert (net.inputs, net.outputs, net.name) == ([], ["loss"], "simple")
    assert list(net._layer_names) == ["data", "conv", "ip", "loss"] == list(net.layer_dict)
    assert [layer.type for layer in net.layers] == ["DummyData", "Convolution", "InnerProduct", "SoftmaxWithLoss"]
    assert net.top_names == OrderedDict(data=["data", "label"], conv=["conv"], ip=["ip_blob"], loss=["loss"])
    assert net.bottom_names == OrderedDict(data=[], conv=["data"], ip=["conv"], loss=["ip_blob", "label"])
    assert list(net.blobs) == net._blob_names == ["data", "label", "conv", "ip_blob", "loss"]
    assert (net._inputs, net._outputs, net._top_ids(0), net._bottom_ids(3)) == ([], [4], [0, 1], [3, 1])
    assert net._blobs[2] is net.blobs["conv"]
    assert list(net.blob_loss_weights.values()) == net._blob_loss_weights == [0, 0, 0, 0, 1]
    assert [(name, len(blobs)) for name, blobs in net.params.items()] == [("conv", 2), ("ip", 2)]
    assert len(net.layers[0].blobs) == 0
    assert net.layers[1].blobs[0].data.shape == (11, 2, 2, 2)


def test_blob_shapes_in_all_their_forms(net):
    blob = net.blobs["conv"]
    assert list(blob.shape) == [5, 11, 8, 9] == [blob.num, blob.channels, blob.height, blob.width]
    assert blob.count == 5 * 11 * 8 * 9 == blob.data.size
    assert (net.params["ip"][1].num, net.params["ip"][1].channels) == (NUM_CLASSES, 1)
    assert net.blobs["loss"].data.shape == ()
    assert blob.data.dtype == blob.diff.dtype == np.float32
    assert isinstance(blob, caffe.Blob)
    with pytest.raises(ValueError, match="cannot be negative"):
        blob.reshape(1, -1)


# -- passes ---------------------------------------------------------------------------------------------------------
def test_forward_and_backward_whole(net):
    outputs = net.forward()
    assert list(outputs) == ["loss"]
    assert np.isfinite(outputs["loss"])
    assert net.backward() == {}
    assert net.blobs["conv"].diff.any()
    assert net.params["conv"][0].diff.any()


def test_forward_between_two_layers(net):
    conv = np.random.default_rng(1).random(net.blobs["conv"].data.shape, np.float32)
    net.blobs["conv"].data[:] = conv
    made = net.forward(start="ip", end="ip")
    weight, bias = (blob.data for blob in net.params["ip"])
    assert list(made) == ["ip_blob"]
    np.testing.assert_allclose(made["ip_blob"], conv.reshape(5, -1) @ weight.T + bias, rtol=1e-4, atol=1e-3)
    assert not net.blobs["data"].data.any()  # that layer did not run


def test_backward_between_two_layers_without_a_forward_pass(net):
    diff = np.random.default_rng(2).random((5, NUM_CLASSES), np.float32)
    net.blobs["ip_blob"].diff[:] = diff
    made = net.backward(start="ip", end="ip")
    expected = (diff @ net.params["ip"][0].data).reshape(net.blobs["conv"].shape)
    assert list(made) == ["conv"]
    np.testing.assert_allclose(made["conv"], expected, rtol=1e-3, atol=1e-4)
    assert not net.blobs["ip_blob"].data.any()  # backward writes no data


def test_more_blobs_and_diffs_on_request(net):
    assert set(net.forward(blobs=["conv", "data"])) == {"loss", "conv", "data"}
    assert set(net.backward(diffs=["conv"])) == {"conv"}
    with pytest.raises(ValueError, match=r"'cov' is not a layer of the net \(layers: data, conv, ip, loss\)"):
        net.forward(start="cov")
    with pytest.raises(KeyError, match="'cov' is not a blob"):
        net.forward(blobs=["cov"])


def test_param_diffs_add_up_until_they_are_cleared(net):
    net.forward()
    net.backward()
    diff = net.params["conv"][0].diff
    once = diff.copy()
    net.backward()
    np.testing.assert_allclose(diff, 2 * once, rtol=1e-5, atol=1e-5)
    net.clear_param_diffs()
    assert not diff.any()


def test_constant_dummy_data_is_there_from_the_start_and_keeps_edits(tmp_path):
    net = build(tmp_path, SIMPLE, caffe.TRAIN)
    assert (net.blobs["label"].data == 3).all()
    labels = net.blobs["label"].data
    labels[...] = 7
    first = net.blobs["data"].data.copy()
    net.forward()
    net.forward()
    assert (labels == 7).all()
    del labels
    net.forward()
    assert (net.blobs["label"].data == 7).all()
    assert not np.array_equal(net.blobs["data"].data, first)


DEPLOY = """
    input: 'data' input_shape { dim: 2 dim: 3 }
    layer { name: 'ip' type: 'InnerProduct' bottom: 'data' top: 'ip'
            inner_product_param { num_output: 4 weight_filler { type: 'xavier' } } }
    layer { name: 'relu' type: 'ReLU' bottom: 'ip' top: 'ip' }
    layer { name: 'prob' type: 'Softmax' bottom: 'ip' top: 'prob' }
"""


def softmax_net(net, x):
    scores = np.maximum(x @ net.params["ip"][0].data.T + net.params["ip"][1].data, 0)
    e = np.exp(scores - scores.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_inputs_by_name(tmp_path):
    net = build(tmp_path, DEPLOY)
    x = np.random.default_rng(0).random((2, 3))
    np.testing.assert_allclose(net.forward(data=x)["prob"], softmax_net(net, x), rtol=1e-5)
    np.testing.assert_array_equal(net.blobs["data"].data, x.astype("f4"))
    with pytest.raises(RuntimeError, match="Input blob arguments do not match net inputs: got x, expected data"):
        net.forward(x=x)
    with pytest.raises(RuntimeError, match="Input is not batch sized"):
        net.forward(data=x[:1])


def test_forward_all_runs_what_does_not_fill_a_batch(tmp_path):
    net = build(tmp_path, DEPLOY)
    x = np.random.default_rng(0).random((5, 3)).astype("f4")
    made = net.forward_all(data=x, blobs=["ip"])
    np.testing.assert_allclose(made["prob"], softmax_net(net, x), rtol=1e-5)
    assert made["ip"].shape == (5, 4)


def test_forward_backward_all(tmp_path):
    net = build(
        tmp_path,
        """force_backward: true input: 'data' input_shape { dim: 2 dim: 3 }
           layer { name: 'p' type: 'Power' bottom: 'data' top: 'square' power_param { power: 2 } }""",
    )
    x = np.random.default_rng(0).random((5, 3)).astype("f4")
    diff = np.random.default_rng(1).random((5, 3)).astype("f4")
    values, gradients = net.forward_backward_all(data=x, square=diff)
    np.testing.assert_allclose(values["square"], x**2, rtol=1e-5)
    np.testing.assert_allclose(gradients["data"], 2 * x * diff, rtol=1e-5)
    with pytest.raises(RuntimeError, match="Top diff arguments do not match net outputs"):
        net.backward(data=diff)


def test_callbacks_around_every_layer(net):
    calls = []
    net.before_forward(lambda i: calls.append(("f", i)))
    net.after_forward(lambda i: calls.append(("F", i)))
    net.before_backward(lambda i: calls.append(("b", i)))
    net.after_backward(lambda i: calls.append(("B", i)))
    net.forward(start="ip")
    net.backward(end="ip")
    assert calls == [("f", 2), ("F", 2), ("f", 3), ("F", 3), ("b", 3), ("B", 3), ("b", 2), ("B", 2)]


def test_reshaping_the_input_with_and_without_net_reshape(tmp_path):
    net = build(tmp_path, DEPLOY)
    net.blobs["data"].reshape(7, 3)
    assert net.forward()["prob"].shape == (7, 4)
    net.blobs["data"].reshape(1, 3)
    net.reshape()
    assert net.blobs["prob"].data.shape == net.blobs["prob"].diff.shape == (1, 4)
    x = np.ones((1, 3), "f4")
    np.testing.assert_allclose(net.forward(data=x)["prob"], softmax_net(net, x), rtol=1e-5)


# -- memory ---------------------------------------------------------------------------------------------------------
def test_arrays_outlive_the_net(tmp_path):
    net = build(tmp_path, SIMPLE, caffe.TRAIN)
    blobs, params = list(net.blobs.values()), [blob for blobs in net.params.values() for blob in blobs]
    array = net.params["conv"][1].data
    del net
    gc.collect()
    assert (array == 2).all()
    assert np.isfinite(sum(blob.data.sum() + blob.diff.sum() for blob in [*blobs, *params]))


def test_arrays_taken_before_a_pass_show_what_it_makes(net):
    views = {name: (blob.data, blob.diff) for name, blob in net.blobs.items()}
    part = net.blobs["conv"].data[0, 0]
    net.forward()
    net.backward()
    for name, (data, diff) in views.items():
        assert data.ctypes.data == net.blobs[name].data.ctypes.data
        assert diff.ctypes.data == net.blobs[name].diff.ctypes.data
    assert part.any()
    assert views["conv"][1].any()


def test_outputs_of_one_pass_show_the_next(tmp_path):
    net = build(tmp_path, DEPLOY)
    first = net.forward(data=np.ones((2, 3)))["prob"]
    before = first.copy()
    net.forward(data=np.full((2, 3), -2.0))
    assert not np.array_equal(first, before)


def test_a_split_blob_is_its_source(tmp_path):
    net = build(
        tmp_path,
        """input: 'x' input_shape { dim: 2 }
           layer { name: 'a' type: 'Power' bottom: 'x' top: 'a' power_param { scale: 2 } }
           layer { name: 'b' type: 'Power' bottom: 'x' top: 'b' power_param { scale: 3 } }""",
    )
    assert list(net.blobs) == ["x", "x_input_0_split_0", "x_input_0_split_1", "a", "b"]
    views = [blob.data for blob in net.blobs.values()]
    net.blobs["x"].data[...] = 1
    net.forward()
    net.blobs["x"].data[...] = 5
    net.forward(start="a")  # past the split: it reads the same memory
    assert [view.tolist() for view in views] == [[5, 5]] * 3 + [[10, 10], [15, 15]]


def test_backward_reads_parameters_and_blobs_as_they_are_now(tmp_path):
    net = build(
        tmp_path,
        """force_backward: true input: 'x' input_shape { dim: 1 dim: 2 }
           layer { name: 'ip' type: 'InnerProduct' bottom: 'x' top: 'y'
                   inner_product_param { num_output: 1 bias_term: false } }""",
    )
    net.forward(x=np.array([[2.0, 3.0]]))
    weights = str(tmp_path / "weights")
    other = build(tmp_path, Path(tmp_path / "net.prototxt").read_text())
    other.params["ip"][0].data[...] = [[5, 7]]
    other.save(weights)
    net.copy_from(weights)  # after the forward pass
    net.blobs["x"].data[...] = [[11, 13]]
    net.blobs["y"].diff[...] = 2
    net.backward()
    assert net.blobs["x"].diff.tolist() == [[10, 14]]
    assert net.params["ip"][0].diff.tolist() == [[22, 26]]


def test_backward_through_frozen_parameters_without_a_forward_pass(tmp_path):
    net = build(
        tmp_path,
        """force_backward: false input: 'x' input_shape { dim: 1 dim: 2 }
           layer { name: 'first' type: 'InnerProduct' bottom: 'x' top: 'h' inner_product_param { num_output: 2 } }
           layer { name: 'frozen' type: 'InnerProduct' bottom: 'h' top: 'y' param { lr_mult: 0 }
                   inner_product_param { num_output: 1 bias_term: false } loss_weight: 1 }""",
        caffe.TRAIN,
    )
    net.params["frozen"][0].data[...] = [[3, 4]]
    net.backward()
    assert net.blobs["h"].diff.tolist() == [[3, 4]]
    assert net.params["first"][1].diff.tolist() == [3, 4]
    assert net.params["frozen"][0].data.tolist() == [[3, 4]]


def test_nets_share_parameters(tmp_path):
    one, two = build(tmp_path, SIMPLE, caffe.TRAIN), build(tmp_path, SIMPLE, caffe.TRAIN)
    assert not equal_params(one, two)
    two.share_with(one)
    assert equal_params(one, two)
    one.params["ip"][1].data[...] = 4
    assert (two.params["ip"][1].data == 4).all()
    assert (two.layers[2].blobs[1].data == 4).all()


# -- files ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["save", "save_hdf5"])
@pytest.mark.parametrize("name", ["weights", "weights.h5", "weights.caffemodel"])
def test_saved_weights_come_back(tmp_path, net, kind, name):
    path = str(tmp_path / name)
    getattr(net, kind)(path)
    assert (Path(path).read_bytes()[:4] == b"\x89HDF") == (kind == "save_hdf5")
    other = build(tmp_path, SIMPLE, caffe.TRAIN)
    (other.load_hdf5 if kind == "save_hdf5" else other.copy_from)(path)
    assert equal_params(net, other)


def test_weights_that_do_not_fit(tmp_path, net):
    path = str(tmp_path / "weights")
    net.save(path)
    other = build(tmp_path, SIMPLE.replace("num_output: 11", "num_output: 12"), caffe.TRAIN)
    with pytest.raises(WeightsError, match="layer 'conv', blob 0 has shape 11 x 2 x 2 x 2"):
        other.copy_from(path)
    with pytest.raises(RuntimeError, match="Could not open file"):
        other.copy_from(str(tmp_path / "nowhere"))


# -- memory data ----------------------------------------------------------------------------------------------------
def test_arrays_served_by_a_memory_data_layer(tmp_path):
    net = build(
        tmp_path,
        """layer { name: 'm' type: 'MemoryData' top: 'x' top: 't'
                   memory_data_param { batch_size: 2 channels: 1 height: 1 width: 3 } }""",
    )
    data, labels = np.arange(12, dtype="f4").reshape(4, 1, 1, 3), np.arange(4, dtype="f4")
    net.set_input_arrays(data, labels)
    assert net.forward()["t"].reshape(-1).tolist() == [0, 1]
    data[2] = -1  # used where it is
    assert net.forward()["x"].reshape(2, 3).tolist() == [[-1, -1, -1], [9, 10, 11]]
    assert net.forward()["t"].reshape(-1).tolist() == [0, 1]
    with pytest.raises(RuntimeError, match="needs a net with a MemoryData layer"):
        build(tmp_path, DEPLOY).set_input_arrays(data, labels)


def test_parameters_keep_their_shape(tmp_path):
    net = build(tmp_path, DEPLOY)
    net.params["ip"][0].reshape(4, 3)
    with pytest.raises(Exception, match=r"parameter 0 has shape \(4, 3\) and keeps it"):
        net.params["ip"][0].reshape(12)


def test_usage_errors_are_runtime_errors_too(tmp_path):
    with pytest.raises(UsageError, match="Could not open file"):
        caffe.Net(str(tmp_path / "nowhere.prototxt"), caffe.TEST)
