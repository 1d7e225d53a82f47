"""Layers written in Python: what the user's code sees and does, and how its failures are reported."""

from __future__ import annotations

import re
import sys
import textwrap

import numpy as np
import pytest
import torch

import caffe
from poseidon.errors import LayerError
from poseidon.net.net import Net
from poseidon.net.stepwise import Stepwise
from poseidon.spec import caffe_pb2, parse_net
from tests.net.layers.build import build

GOOD = """
    import caffe
    import numpy as np

    class Good(caffe.Layer):
        calls = ()
        def setup(self, bottom, top):
            self.calls += ("setup",)
        def reshape(self, bottom, top):
            self.calls += ("reshape",)
            top[0].reshape(*bottom[0].shape)
        def forward(self, bottom, top):
            self.calls += ("forward",)
            top[0].data[...] = 3 * bottom[0].data
        def backward(self, top, propagate_down, bottom):
            self.calls += (propagate_down,)
            bottom[0].diff[...] = 3 * top[0].diff

    class Statistics(Good):
        def setup(self, bottom, top):
            self.blobs.add_blob(2)
            self.blobs.add_blob()
        def forward(self, bottom, top):
            self.blobs[0].data[...] += 1
            top[0].data[...] = bottom[0].data
        def backward(self, top, propagate_down, bottom):
            self.blobs[0].diff[...] = 5

    class Batches(caffe.Layer):
        '''Each batch has its own size, known when reshape is called before forward.'''
        def setup(self, bottom, top):
            self.size = 0
        def reshape(self, bottom, top):
            self.size += 1
            top[0].reshape(self.size, 2)
            top[1].reshape(self.size)
        def forward(self, bottom, top):
            top[0].data[...] = self.size
            top[1].data[...] = np.arange(self.size)

    class Still(caffe.Layer):
        '''Writes its top once, in setup.'''
        def setup(self, bottom, top):
            top[0].reshape(2)
            top[0].data[...] = 4
        def reshape(self, bottom, top):
            pass
        def forward(self, bottom, top):
            pass

    class Look(caffe.Layer):
        '''In place, and changes nothing.'''
        def reshape(self, bottom, top):
            pass
        def forward(self, bottom, top):
            self.seen = bottom[0].data.copy()
        def backward(self, top, propagate_down, bottom):
            pass

    class Bare(caffe.Layer):
        pass

    class NoBackward(caffe.Layer):
        def reshape(self, bottom, top):
            top[0].reshape(*bottom[0].shape)
        def forward(self, bottom, top):
            pass

    class Raises(Good):
        def setup(self, bottom, top):
            getattr(self, "fail_" + self.param_str, lambda: None)()
        def fail_setup(self):
            raise RuntimeError("no such option")
        def forward(self, bottom, top):
            top[0].data = bottom[0].data
        def __init__(self, layer_param):
            super().__init__(layer_param)
            if layer_param.python_param.param_str == "init":
                raise KeyError("key")

    class NotALayer:
        pass

    number = 3
"""


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    """A folder with user modules as the current one; nothing imported or put on the path before counts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("user_layers", "broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "user_layers.py").write_text(textwrap.dedent(GOOD))
    (tmp_path / "broken.py").write_text("import caffe\n1 / 0\n")


def python(layer: str, *shapes: tuple[int, ...], module: str = "user_layers", tops: int = 1, **options):
    bottoms = " ".join(f'bottom: "b{i}"' for i in range(len(shapes)))
    outputs = " ".join(f'top: "t{i}"' for i in range(tops))
    param_str = options.pop("param_str", "")
    chosen = f'python_param {{ module: "{module}" layer: "{layer}" param_str: "{param_str}" }}'
    return build(f'type: "Python" {bottoms} {outputs} {chosen}', *shapes, **options)


def test_the_users_methods_are_called_in_caffes_order():
    layer = python("Good", (2, 3))
    x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    y = layer(x)[0]
    y.sum().backward()
    assert layer.user.calls == ("setup", "reshape", "reshape", "forward", [True])
    assert x.grad.tolist() == [[3.0] * 3] * 2
    assert isinstance(layer.user, caffe.Layer)


def test_what_the_user_is_told():
    layer = python("Good", (2, 3), phase=caffe_pb2.TEST, param_str="a=1")
    assert (layer.user.param_str, layer.user.phase, layer.user.type) == ("a=1", 1, "Python")


def test_statistics_written_in_forward_reach_the_parameters_and_gradients_accumulate():
    layer = python("Statistics", (2, 3))
    assert layer.param_shapes == [(2,), ()]
    x = torch.zeros(2, 3, dtype=torch.float64)
    first = layer(x)[0]
    second = layer(x)[0]  # writing into the blob in between must not spoil the first pass's backward
    assert layer.param(0).tolist() == [2, 2]
    (first.sum() + second.sum()).backward()
    assert layer.param(0).grad.tolist() == [10, 10]


def test_a_data_layer_may_change_its_shape_with_every_batch():
    text = """
        layer { name: "d" type: "Python" top: "x" top: "n"
                python_param { module: "user_layers" layer: "Batches" } }
        layer { name: "p" type: "Power" bottom: "x" top: "y" power_param { scale: 2 } }
    """
    net = Net(parse_net(text), phase="TRAIN")
    assert net.blob_shapes["y"] == (1, 2)
    run = Stepwise(net)
    for size in (2, 3):
        run.forward()
        assert run.blobs["y"].data.tolist() == [[2.0 * size] * 2] * size
        assert run.blobs["n"].data.tolist() == list(range(size))


def test_a_top_keeps_what_was_written_into_it():
    layer = python("Still")
    first = layer()[0]
    first.zero_()  # whoever takes the top owns it
    assert layer()[0].tolist() == [4, 4]


def test_in_place_code_that_does_nothing_passes_data_and_gradient_through():
    spec = """
        layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 } } }
        layer { name: "t" type: "TanH" bottom: "x" top: "y" }
        layer { name: "look" type: "Python" bottom: "y" top: "y"
                python_param { module: "user_layers" layer: "Look" } }
    """
    net = Net(parse_net(f"force_backward: true {spec}"), phase="TRAIN")
    x = torch.tensor([0.5, -1.0], requires_grad=True)
    net(x=x)["y"].sum().backward()
    np.testing.assert_allclose(net.layers["look"].user.seen, np.tanh([0.5, -1.0]), rtol=1e-6)
    np.testing.assert_allclose(x.grad.numpy(), 1 - np.tanh([0.5, -1.0]) ** 2, rtol=1e-5)


def test_propagate_down_follows_what_needs_a_gradient():
    layer = python("Good", (2,), (2,))
    a, b = torch.zeros(2, dtype=torch.float64, requires_grad=True), torch.zeros(2, dtype=torch.float64)
    layer(a, b)[0].sum().backward()
    assert layer.user.calls[-1] == [True, False]


# -- failures -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("module", "layer", "message", "cause"),
    [
        ("", "Good", "python_param needs `module` and `layer`", None),
        ("user_layers", "", "python_param needs `module` and `layer`", None),
        (
            "no_such",
            "Good",
            "cannot import module 'no_such' for class 'Good': ModuleNotFoundError: No module named 'no_such'; "
            "it must be in the current folder or on PYTHONPATH",
            ModuleNotFoundError,
        ),
        ("broken", "Good", "cannot import module 'broken' for class 'Good': ZeroDivisionError", ZeroDivisionError),
        (
            "user_layers",
            "Goood",
            "module 'user_layers' has no class 'Goood' (layers in it: Good, Statistics, Batches,",
            None,
        ),
        ("user_layers", "NotALayer", "needs a subclass of caffe.Layer under the name 'NotALayer'", None),
        ("user_layers", "number", "needs a subclass of caffe.Layer under the name 'number'", None),
    ],
)
def test_a_class_that_cannot_be_found(module, layer, message, cause):
    with pytest.raises(LayerError, match=re.escape(message)) as raised:
        python(layer, (2,), module=module)
    assert cause is None or isinstance(raised.value.__cause__, cause)


def test_failures_in_user_code_name_the_method_and_keep_the_cause():
    where = "layer 'L' (Python): user_layers.Raises"
    with pytest.raises(LayerError, match=re.escape(f"{where}.__init__ failed: KeyError: 'key'")):
        python("Raises", (2,), param_str="init")
    with pytest.raises(LayerError, match=re.escape(f"{where}.setup failed: RuntimeError: no such option")) as raised:
        python("Raises", (2,), param_str="setup")
    assert isinstance(raised.value.__cause__, RuntimeError)
    layer = python("Raises", (2,))
    with pytest.raises(LayerError, match=re.escape(f"{where}.forward failed: AttributeError")):
        layer(torch.zeros(2))


def test_missing_methods():
    with pytest.raises(LayerError, match=re.escape("user_layers.Bare.reshape failed: NotImplementedError")):
        python("Bare", (2,))
    layer = python("NoBackward", (2,))
    y = layer(torch.zeros(2, dtype=torch.float64, requires_grad=True))[0]
    with pytest.raises(LayerError, match=re.escape("user_layers.NoBackward.backward failed: NotImplementedError")):
        y.sum().backward()
