"""PyTorch modules and ONNX graphs brought into Caffe: the numbers stay, what cannot be expressed is listed whole."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import save_file
from torch import nn

from poseidon.convert.to_caffe.convert import import_model
from poseidon.convert.to_caffe.from_torch import input_names, load_module, record
from poseidon.errors import ConvertError, UsageError, WeightsError
from poseidon.net import Net
from tests.convert.harness import close


def same(module: nn.Module, *shapes: tuple[int, ...]) -> Net:
    """The net computes what the module does."""
    module = module.eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
        for name, buffer in module.named_buffers():
            if buffer.is_floating_point():
                buffer.copy_(torch.rand(buffer.shape, generator=generator) + (0.5 if "var" in name else 0.0))
    named = dict(zip("xyz", shapes, strict=False))
    recorded, outputs = record(module, named)
    net = recorded.built()
    inputs = {name: torch.randn(shape, generator=generator) for name, shape in named.items()}
    with torch.no_grad():
        want = module(*inputs.values())
        got = net(inputs, keep=outputs)
    want = want if isinstance(want, tuple) else (want,)
    close(
        {str(i): got[name].numpy() for i, name in enumerate(outputs)},
        {str(i): value.numpy() for i, value in enumerate(want)},
    )
    return net


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Call2(Call):
    def forward(self, x, y):
        return self.function(x, y)


IMAGE = (2, 4, 9, 8)
MODULES = {
    "conv": nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2, bias=False),
    "conv_same": nn.Conv2d(4, 6, 3, padding="same"),
    "conv_same_even": nn.Conv2d(4, 6, 4, padding="same"),
    "deconv": nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1, groups=2),
    "bn": nn.BatchNorm2d(4, eps=1e-3),
    "bn_plain": nn.BatchNorm2d(4, affine=False),
    "max_floor": nn.MaxPool2d(3, 2),
    "max_ceil": nn.MaxPool2d(3, 2, padding=1, ceil_mode=True),
    "avg_ceil": nn.AvgPool2d(3, 2, padding=1, ceil_mode=True),
    "avg_floor": nn.AvgPool2d(2, 2),
    "avg_without_pad": nn.AvgPool2d(3, 2, padding=1, count_include_pad=False),
    "avg_divisor": nn.AvgPool2d(3, 2, divisor_override=5),
    "global": nn.AdaptiveAvgPool2d(1),
    "adaptive": nn.AdaptiveMaxPool2d((3, 2)),
    "prelu": nn.PReLU(4),
    "prelu_shared": nn.PReLU(),
    "lrn": nn.LocalResponseNorm(3, alpha=0.1, beta=0.6, k=2.0),
    "activations": nn.Sequential(nn.LeakyReLU(0.2), nn.ELU(0.7), nn.Tanh(), nn.Sigmoid(), nn.Softplus(), nn.SiLU()),
    "clipped": nn.Sequential(nn.ReLU6(), nn.Hardtanh(-0.5, 2.0), nn.Hardswish(), nn.Hardsigmoid()),
    "dropout": nn.Dropout(0.4),
    "softmax": nn.Softmax(1),
    "log_softmax": nn.LogSoftmax(1),
    "head": nn.Sequential(nn.Flatten(), nn.Linear(4 * 9 * 8, 5)),
    "in_place": nn.Sequential(nn.Conv2d(4, 3, 1), nn.ReLU(inplace=True)),
    "upsample": nn.Upsample(scale_factor=2),
    "arithmetic": Call(lambda x: (2 * x - 1) / 4 + (1 - x) * x - x / (x.abs() + 1) + x**2),
    "channel_constants": Call(lambda x: x * torch.arange(1.0, 5).view(1, 4, 1, 1) + torch.ones(9, 1)),
    "squeeze_excite": Call(lambda x: x * torch.sigmoid(x.mean((2, 3), keepdim=True))),
    "shapes": Call(lambda x: x.view(2, -1).unsqueeze(1).reshape(2, 8, 4, 9).squeeze(0).transpose(1, 2).flatten(1, 2)),
    "cut": Call(lambda x: torch.cat([x[:, 1:3], x.narrow(1, 0, 1), *x.chunk(2, 1)], 1)),
    "select": Call(lambda x: x[:, 2, 4:8] + x[..., 0, :].mean(2, keepdim=True)),
    "padded": nn.Sequential(nn.ZeroPad2d((1, 2, 0, 3)), nn.Conv2d(4, 2, 3, stride=2)),
    "attribute": Call(lambda x: x.mean((2, 3)).T[1:].T),
    "sum": Call(lambda x: x.sum((2, 3))),
    "split": Call(lambda x: torch.maximum(*x.split(2, 1))),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules(name):
    same(MODULES[name], IMAGE)


def test_two_inputs_and_outputs_and_shared_values():
    same(Call2(lambda x, y: (F.relu(x + y), x - 2 * y, x * y.mean((2, 3), keepdim=True))), IMAGE, IMAGE)


def test_an_input_overwritten_in_place_keeps_its_old_readers():
    def forward(x):
        y = torch.tanh(x)
        z = y * 2
        y.relu_()
        return y + z

    same(Call(forward), IMAGE)


def test_layers_are_named_after_modules():
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(nn.Conv2d(4, 2, 1), nn.ReLU())
            self.fc = nn.Linear(2, 3)

        def forward(self, image):
            return self.fc(self.features(image).mean((2, 3)))

    net, outputs = record(Small().eval(), {"image": IMAGE})
    assert [layer.name for layer in net.message.layer][:3] == ["image", "features.0", "features.1"]
    assert outputs == ["fc"]


def test_everything_that_cannot_be_expressed_is_listed():
    class Bad(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.GroupNorm(2, 4)
            self.pool = nn.MaxPool2d(3, dilation=2)
            self.gelu = nn.GELU()

        def forward(self, x):
            return self.gelu(self.norm(x)).cumsum(1), self.pool(x).roll(1, 2)

    with pytest.raises(ConvertError) as caught:
        record(Bad().eval(), {"x": IMAGE})
    text = str(caught.value)
    assert "5 operation(s) cannot be expressed" in text
    for name in ("norm: group_norm(2x4x9x8)", "gelu: gelu", "cumsum", "roll", "pools with dilation (2, 2)"):
        assert name in text


# -- files and weights ----------------------------------------------------------------------------------------------
MODEL = """
from torch import nn

def make():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
"""


def test_a_factory_with_safetensors(tmp_path):
    (tmp_path / "mine.py").write_text(MODEL)
    module = load_module(f"{tmp_path / 'mine.py'}:make", None)
    save_file({name: value + 1 for name, value in module.state_dict().items()}, tmp_path / "w.safetensors")
    model = f"{tmp_path / 'mine.py'}:make"
    report = import_model(model, str(tmp_path / "w.safetensors"), tmp_path / "net.prototxt", {"input": (1, 1, 4, 4)})
    assert [path.name for path in report.files] == ["net.prototxt", "net.caffemodel"]
    assert report.largest < 1e-5
    net = Net(*report.files)
    stored = {name: value + 1 for name, value in module.state_dict().items()}
    assert net.params["0"][0].shape == stored["0.weight"].shape


def test_indices_into_an_embedding(tmp_path):
    (tmp_path / "words.py").write_text(
        "from torch import nn\ndef make(): return nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3), nn.Tanh())\n"
    )
    report = import_model(f"{tmp_path / 'words.py'}:make", None, tmp_path / "net.prototxt", {"input": (2, 5)})
    assert report.trials
    assert report.largest < 1e-5
    assert [layer.type_name for layer in Net(*report.files).layers.values()][1:3] == ["Embed", "InnerProduct"]


def test_weights_that_do_not_fit(tmp_path):
    (tmp_path / "mine.py").write_text(MODEL)
    model = f"{tmp_path / 'mine.py'}:make"
    save_file({"0.weight": torch.zeros(1)}, tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match="does not fit the module"):
        load_module(model, str(tmp_path / "w.safetensors"))
    (tmp_path / "w.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(WeightsError, match="not a readable safetensors file"):
        load_module(model, str(tmp_path / "w.safetensors"))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("no_colon", "expected MODULE:FACTORY"),
        ("no.such.module:make", "importing it failed: ModuleNotFoundError"),
        ("nothing.py:make", "there is no such file"),
        ("math:nothing", "has no function or class 'nothing'"),
        ("builtins:dict", "expected a torch.nn.Module"),
    ],
)
def test_factories_that_are_none(model, message):
    with pytest.raises((UsageError, ConvertError), match=message):
        load_module(model, None)


def test_inputs_need_shapes():
    with pytest.raises(UsageError, match=r"the module takes x, y; .*--shape y=1"):
        input_names(Call2(torch.add), {"x": (1, 2)})


# -- ONNX -----------------------------------------------------------------------------------------------------------
def onnx_of(nodes, inputs: dict, outputs: list[str], constants: dict | None = None, opset: int = 17):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)  # outputs need a rank


def check_onnx(model, tmp_path) -> Net:
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    report = import_model(str(path), None, tmp_path / "net.prototxt", {})
    assert report.trials
    assert report.largest < 1e-5
    return Net(*report.files)


def node(op, inputs, outputs=("y",), **attributes):
    return helper.make_node(op, list(inputs), list(outputs), **attributes)


RANDOM = np.random.default_rng(3)
GRAPHS = {
    "conv_uneven": ([node("Conv", "xw", pads=[1, 1, 2, 1], strides=[2, 1])], {"w": RANDOM.normal(size=(3, 4, 4, 3))}),
    "conv_behind_only": (
        [node("Conv", "xw", pads=[0, 0, 1, 1], strides=[2, 2])],
        {"w": RANDOM.normal(size=(3, 4, 3, 3))},
    ),
    "conv_front_only": ([node("Conv", "xw", pads=[2, 1, 0, 0])], {"w": RANDOM.normal(size=(3, 4, 3, 2))}),
    "conv_same_lower": ([node("Conv", "xw", auto_pad="SAME_LOWER")], {"w": RANDOM.normal(size=(3, 4, 3, 3))}),
    "average": ([node("AveragePool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])], {}),
    "average_counted": (
        [node("AveragePool", "x", kernel_shape=[3, 3], pads=[0, 1, 1, 1], strides=[2, 2], count_include_pad=1)],
        {},
    ),
    "max_uneven": ([node("MaxPool", "x", kernel_shape=[3, 3], pads=[0, 0, 1, 1], strides=[2, 2])], {}),
    "gemm": (
        [node("Flatten", "x", "f"), node("Gemm", "fwb", alpha=0.5, beta=2.0)],
        {"w": RANDOM.normal(size=(4 * 9 * 8, 5)), "b": RANDOM.normal(size=(5,))},
    ),
    "matmul_bias": (
        [node("MatMul", "xw", "m"), node("Add", "mb")],
        {"w": RANDOM.normal(size=(8, 3)), "b": RANDOM.normal(size=(3,))},
    ),
    "shape_arithmetic": (
        [
            node("Shape", "x", "s"),
            node("Gather", "si", "n", axis=0),
            node("Unsqueeze", "nz", "u"),
            node("Concat", "um", "r", axis=0),
            node("Reshape", "xr"),
        ],
        {"i": np.int64(0), "z": np.int64([0]), "m": np.int64([-1])},
    ),
    "clip_and_prelu": (
        [node("Clip", "xab", "c"), node("PRelu", "cs")],
        {"a": np.float32(-1), "b": np.float32(0.5), "s": RANDOM.normal(size=(4, 1, 1))},
    ),
    "split_sum": ([node("Split", "xp", "abc", axis=1), node("Sum", "abc")], {"p": np.int64([1, 1, 1])}),
    "slice": ([node("Slice", "xseat")], {"s": [1], "e": [-1], "a": [2], "t": [1]}),
    "nearest": ([node("Resize", ["x", "", "s"], mode="nearest")], {"s": np.float32([1, 1, 2, 3])}),
    "means": ([node("ReduceMean", "x", axes=[2, 3], keepdims=0)], {}),
    "broadcast": ([node("GlobalAveragePool", "x", "g"), node("Mul", "gx", "m"), node("Sub", "mg")], {}),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_onnx_graphs(name, tmp_path):
    nodes, constants = GRAPHS[name]
    shape = (2, 3, 9, 8) if name == "split_sum" else IMAGE
    floats = {
        key: np.asarray(value, np.float32 if np.asarray(value).dtype.kind == "f" else np.int64)
        for key, value in constants.items()
    }
    check_onnx(onnx_of(nodes, {"x": shape}, ["y"], floats), tmp_path)


def test_onnx_lists_everything_it_cannot_express(tmp_path):
    nodes = [
        node("Gelu", "x", "a"),
        node("CumSum", "ai", "b"),
        node("Erf", "b"),
        node("MaxPool", "x", "z", kernel_shape=[2, 2], dilations=[2, 2]),
    ]
    model = onnx_of(nodes, {"x": IMAGE}, ["y", "z"], {"i": np.int64(1)}, opset=20)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ConvertError) as caught:
        import_model(str(tmp_path / "m.onnx"), None, tmp_path / "net.prototxt", {})
    text = str(caught.value)
    assert "4 operation(s)" in text
    for name in ("Gelu", "CumSum", "MaxPool", "Erf"):
        assert f"{name}: " in text
    assert not (tmp_path / "net.prototxt").exists()


def test_onnx_inputs_without_a_shape_ask_for_one(tmp_path):
    model = onnx_of([node("Relu", "x")], {"x": ["n", "c", "h"]}, ["y"])
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UsageError, match="--shape x=1,"):
        import_model(str(tmp_path / "m.onnx"), None, tmp_path / "net.prototxt", {})
    report = import_model(str(tmp_path / "m.onnx"), None, tmp_path / "net.prototxt", {"x": (1, 2, 3)})
    assert report.largest == 0
    assert onnx.load(tmp_path / "m.onnx").graph.node[0].op_type == "Relu"
