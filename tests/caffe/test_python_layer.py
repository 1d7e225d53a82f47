"""Layers written in Python, run through `import caffe`: they work on the net's own blobs."""

from __future__ import annotations

import sys
import textwrap

import numpy as np
import pytest

import caffe
from tests.caffe.nets import build, write

LAYERS = """
    import caffe
    import numpy as np

    class Times(caffe.Layer):
        '''Multiplies by param_str, ten without one.'''
        def setup(self, bottom, top):
            self.factor = float(self.param_str or 10)
        def reshape(self, bottom, top):
            top[0].reshape(*bottom[0].data.shape)
        def forward(self, bottom, top):
            top[0].data[...] = self.factor * bottom[0].data
        def backward(self, top, propagate_down, bottom):
            bottom[0].diff[...] = self.factor * top[0].diff

    class Fails(caffe.Layer):
        def setup(self, bottom, top):
            raise {"r": RuntimeError, "k": KeyError, "": ValueError}[self.param_str]("wrong setting")

    class FailsLater(Times):
        def forward(self, bottom, top):
            raise StopIteration("no more")
        def backward(self, top, propagate_down, bottom):
            raise IndexError("no gradient")

    class Learns(Times):
        '''Has one parameter, whose diff it sets.'''
        def setup(self, bottom, top):
            self.blobs.add_blob(1)
            self.blobs[0].data[0] = 0
        def forward(self, bottom, top):
            pass
        def backward(self, top, propagate_down, bottom):
            self.blobs[0].diff[0] += 1

    class Phase(caffe.Layer):
        def setup(self, bottom, top):
            pass
        def reshape(self, bottom, top):
            top[0].reshape()
        def forward(self, bottom, top):
            top[0].data[()] = self.phase

    class Counts(caffe.Layer):
        '''A data layer: the natural numbers, four at a time, with settings that are a Python expression.'''
        def setup(self, bottom, top):
            self.settings = eval(self.param_str_)
            self.next = self.settings["start"]
            if len(top) != 2:
                raise Exception("needs two tops")
            top[0].reshape(4, 1)
            top[1].reshape(4)
        def reshape(self, bottom, top):
            pass
        def forward(self, bottom, top):
            numbers = np.arange(self.next, self.next + 4)
            top[0].data[...] = numbers[:, None]
            top[1].data[...] = numbers % 2
            self.next += 4
        def backward(self, top, propagate_down, bottom):
            pass

    class Grows(caffe.Layer):
        '''A data layer that shapes its top in forward.'''
        size = 0
        def setup(self, bottom, top):
            top[0].reshape(1)
        def reshape(self, bottom, top):
            pass
        def forward(self, bottom, top):
            self.size += 1
            top[0].reshape(self.size)
            top[0].data[...] = np.arange(self.size)
        def backward(self, top, propagate_down, bottom):
            pass

    class Distance(caffe.Layer):
        '''Half the mean squared distance, as a loss; keeps the difference for backward.'''
        def setup(self, bottom, top):
            assert len(bottom) == 2
        def reshape(self, bottom, top):
            if bottom[0].count != bottom[1].count:
                raise Exception("Inputs must have the same dimension.")
            self.diff = np.zeros_like(bottom[0].data, dtype=np.float32)
            top[0].reshape(1)
        def forward(self, bottom, top):
            self.diff[...] = bottom[0].data - bottom[1].data
            top[0].data[...] = np.sum(self.diff**2) / bottom[0].num / 2.0
        def backward(self, top, propagate_down, bottom):
            for i in range(2):
                if not propagate_down[i]:
                    continue
                sign = 1 if i == 0 else -1
                bottom[i].diff[...] = sign * self.diff / bottom[i].num

    class Early(caffe.Layer):
        '''Writes the gradient in forward already; backward only scales it.'''
        def setup(self, bottom, top):
            pass
        def reshape(self, bottom, top):
            top[0].reshape(1)
        def forward(self, bottom, top):
            top[0].data[0] = (bottom[0].data ** 2).sum()
            bottom[0].diff[...] = 2 * bottom[0].data
        def backward(self, top, propagate_down, bottom):
            bottom[0].diff[...] *= top[0].diff[0]

    class Doubles(caffe.Layer):
        '''In place.'''
        def setup(self, bottom, top):
            self.same = top[0] is bottom[0]
        def reshape(self, bottom, top):
            pass
        def forward(self, bottom, top):
            self.same = self.same and top[0] is bottom[0]
            top[0].data[...] *= 2
        def backward(self, top, propagate_down, bottom):
            bottom[0].diff[...] *= 2
"""


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "face_layers", raising=False)
    (tmp_path / "face_layers.py").write_text(textwrap.dedent(LAYERS))


def python(name: str, layer: str, bottom: str = "", top: str = "", more: str = "") -> str:
    bottoms = " ".join(f"bottom: '{blob}'" for blob in bottom.split())
    tops = " ".join(f"top: '{blob}'" for blob in top.split())
    return (
        f"layer {{ name: '{name}' type: 'Python' {bottoms} {tops} "
        f"python_param {{ module: 'face_layers' layer: '{layer}' {more} }} }}\n"
    )


INPUT = "force_backward: true input: 'data' input_shape { dim: 10 dim: 9 dim: 8 }\n"
CHAIN = (
    INPUT
    + python("one", "Times", "data", "one")
    + python("two", "Times", "one", "two", "param_str: '2'")
    + python("three", "Times", "two", "three", 'param_str: "-1.5"')
)


def test_forward_through_three(tmp_path):
    net = build(tmp_path, CHAIN, caffe.TRAIN)
    net.blobs["data"].data[...] = 8
    assert (net.forward()["three"] == -240).all()


def test_backward_without_a_forward_pass_calls_no_forward(tmp_path):
    net = build(tmp_path, CHAIN, caffe.TRAIN)
    net.blobs["three"].diff[...] = 7
    assert (net.backward()["data"] == -210).all()
    assert not net.blobs["one"].data.any()


def test_a_new_shape_reaches_the_last_layer(tmp_path):
    net = build(tmp_path, CHAIN, caffe.TRAIN)
    net.blobs["data"].reshape(4, 4, 4, 4)
    net.forward()
    assert {tuple(blob.shape) for blob in net.blobs.values()} == {(4, 4, 4, 4)}
    net.blobs["data"].reshape(2, 1)
    net.reshape()
    assert net.blobs["three"].data.shape == (2, 1)


@pytest.mark.parametrize(("text", "kind"), [("r", RuntimeError), ("k", KeyError), ("", ValueError)])
def test_a_layers_own_exception_comes_out_as_it_is(tmp_path, text, kind):
    file = write(tmp_path, INPUT + python("layer", "Fails", "data", "top", f"param_str: '{text}'"))
    with pytest.raises(kind, match="wrong setting") as raised:
        caffe.Net(file, caffe.TEST)
    if sys.version_info >= (3, 11):
        assert "layer 'layer' (Python): face_layers.Fails.setup failed" in raised.value.__notes__[0]


def test_exceptions_in_the_passes(tmp_path):
    net = build(tmp_path, INPUT + python("layer", "FailsLater", "data", "top"))
    with pytest.raises(StopIteration, match="no more"):
        net.forward()
    with pytest.raises(IndexError, match="no gradient"):
        net.backward()


def test_a_parameter_is_the_layers_own_blob(tmp_path):
    net = build(tmp_path, INPUT + python("layer", "Learns", "data", "top"), caffe.TRAIN)
    net.forward()
    net.backward()
    layer = net.layers[list(net._layer_names).index("layer")]
    assert type(layer).__name__ == "Learns"
    assert (layer.blobs[0].data[0], layer.blobs[0].diff[0]) == (0, 1)
    assert net.params["layer"][0].diff.tolist() == [1]
    net.backward()
    assert layer.blobs[0].diff[0] == 2  # as in Caffe it adds to what is there
    layer.blobs[0].data[0] += layer.blobs[0].diff[0]
    net.save("weights")
    layer.blobs[0].data[0] = -1
    assert net.params["layer"][0].data[0] == -1
    net.copy_from("weights")
    assert layer.blobs[0].data[0] == 2
    other = build(tmp_path, INPUT + python("layer", "Learns", "data", "top"), caffe.TRAIN)
    other.share_with(net)
    assert other.layers[1].blobs[0].data[0] == 2


def test_the_phase(tmp_path):
    for phase in (caffe.TRAIN, caffe.TEST):
        net = build(tmp_path, "force_backward: true\n" + python("layer", "Phase", top="phase"), phase)
        assert net.forward()["phase"] == phase


def test_a_data_layer_and_its_object(tmp_path):
    net = build(tmp_path, python("data", "Counts", top="x label", more="param_str: \"{'start': 6}\""))
    assert net.forward()["x"].tolist() == [[6], [7], [8], [9]]
    net.layers[0].next = 100
    assert net.forward()["label"].tolist() == [0, 1, 0, 1]
    assert net.blobs["x"].data[0, 0] == 100


def test_a_data_layer_that_shapes_its_top_in_forward(tmp_path):
    net = build(
        tmp_path,
        python("data", "Grows", top="x")
        + "layer { name: 'p' type: 'Power' bottom: 'x' top: 'y' power_param { scale: 2 } }",
    )
    assert [net.forward()["y"].tolist() for _ in range(3)] == [[0], [0, 2], [0, 2, 4]]


def test_a_loss_trains(tmp_path):
    net = write(
        tmp_path,
        """
        layer { name: 'data' type: 'DummyData' top: 'x' top: 't' dummy_data_param {
            shape { dim: 6 dim: 3 } shape { dim: 6 dim: 2 }
            data_filler { type: 'gaussian' } data_filler { type: 'constant' value: 1 } } }
        layer { name: 'ip' type: 'InnerProduct' bottom: 'x' top: 'y'
            inner_product_param { num_output: 2 weight_filler { type: 'xavier' } } }
        layer { name: 'loss' type: 'Python' bottom: 'y' bottom: 't' top: 'loss' loss_weight: 1
            python_param { module: 'face_layers' layer: 'Distance' } }
        """,
    )
    solver = caffe.SGDSolver(write(tmp_path, f"net: '{net}' base_lr: 0.5 lr_policy: 'fixed' max_iter: 200", "solver"))
    solver.net.forward()
    solver.net.backward()
    y, t = solver.net.blobs["y"].data, solver.net.blobs["t"].data
    np.testing.assert_allclose(solver.net.blobs["y"].diff, (y - t) / 6, rtol=1e-5)
    np.testing.assert_allclose(solver.net.blobs["loss"].data, [((y - t) ** 2).sum() / 12], rtol=1e-5)
    solver.net.clear_param_diffs()
    solver.step(100)
    np.testing.assert_allclose(solver.net.params["ip"][1].data, 1, atol=1e-3)
    np.testing.assert_allclose(solver.net.params["ip"][0].data, 0, atol=1e-3)


def test_a_diff_written_in_forward_is_there_in_backward(tmp_path):
    text = python("early", "Early", "data", "loss").replace("type:", "loss_weight: 3 type:")
    net = build(tmp_path, INPUT + text, caffe.TRAIN)
    net.blobs["data"].data[...] = 2
    net.forward()
    net.backward()
    assert (net.blobs["data"].diff == 12).all()


def test_in_place(tmp_path):
    net = build(
        tmp_path,
        INPUT + "layer { name: 's' type: 'Sigmoid' bottom: 'data' top: 's' }\n" + python("d", "Doubles", "s", "s"),
        caffe.TRAIN,
    )
    net.blobs["data"].data[...] = 1
    sigmoid = 1 / (1 + np.exp(-1))
    np.testing.assert_allclose(net.forward()["s"], 2 * sigmoid, rtol=1e-6)
    assert net.layers[2].same
    net.blobs["s"].diff[...] = 1
    net.backward()
    np.testing.assert_allclose(net.blobs["data"].diff, 2 * sigmoid * (1 - sigmoid), rtol=1e-5)


def test_a_module_of_another_folder_on_the_path(tmp_path, monkeypatch):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "far_layers.py").write_text((tmp_path / "face_layers.py").read_text())
    monkeypatch.syspath_prepend(str(folder))
    net = build(tmp_path, CHAIN.replace("face_layers", "far_layers"))
    assert net.layers[1].factor == 10
