"""Files made to harm, or just damaged: our error, nothing read outside the folder, nothing executed."""

from __future__ import annotations

import os
import pickle
import random

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from poseidon.cli import main
from poseidon.convert.deploy import Deployment
from poseidon.convert.export import ExportOptions, export_net, net_to_export
from poseidon.convert.to_caffe.convert import import_model
from poseidon.convert.to_caffe.onnx_file import read_onnx
from poseidon.errors import PoseidonError
from tests.net.harness import GOLDEN

LENET = GOLDEN / "nets" / "lenet_like"


def small_model(weight: TensorProto | None = None):
    weight = weight or numpy_helper.from_array(np.ones((3, 4), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def external(location: str, dims=(3, 4), **facts: str) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **facts}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def refusal(tmp_path, model) -> str:
    path = tmp_path / "model.onnx"
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    with pytest.raises(PoseidonError) as caught:
        import_model(str(path), None, tmp_path / "net.prototxt", {})
    return str(caught.value)


def test_weights_beside_the_model_are_read(tmp_path):
    values = np.arange(12, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(b"\0" * 4 + values.tobytes())
    (tmp_path / "m.onnx").write_bytes(small_model(external("w.bin", offset="4", length="48")).SerializeToString())
    model = read_onnx(str(tmp_path / "m.onnx"))
    np.testing.assert_array_equal(numpy_helper.to_array(model.graph.initializer[0]).ravel(), values)
    assert import_model(str(tmp_path / "m.onnx"), None, tmp_path / "n.prototxt", {}).largest < 1e-6


def test_weights_elsewhere_are_not(tmp_path):
    secret = tmp_path / "secret.bin"
    secret.write_bytes(b"\1" * 48)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link.bin").symlink_to(secret)
    (folder / "up").symlink_to(tmp_path)
    places = [
        "../secret.bin",
        str(secret),
        "link.bin",
        "up/secret.bin",
        "./../model/../secret.bin",
        "",
        ".",
        "none.bin",
    ]
    for place in places:
        assert "expected a file in the model's folder: refused" in refusal(folder, small_model(external(place))), place
    os.mkfifo(folder / "pipe.bin")
    assert "refused" in refusal(folder, small_model(external("pipe.bin")))


@pytest.mark.parametrize(
    "facts", [{"offset": "-4"}, {"offset": "1000000"}, {"length": "999999999999"}, {"length": "4"}, {"offset": "x"}]
)
def test_weights_beside_the_model_must_be_as_long_as_they_say(facts, tmp_path):
    (tmp_path / "w.bin").write_bytes(b"\1" * 48)
    assert "cannot be read" in refusal(tmp_path, small_model(external("w.bin", **facts)))


def test_claims_that_no_memory_could_hold(tmp_path):
    huge = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 40, 1 << 20], raw_data=b"\0" * 16)
    refusal(tmp_path, small_model(huge))
    (tmp_path / "w.bin").write_bytes(b"\1" * 48)
    refusal(tmp_path, small_model(external("w.bin", dims=(1 << 40, 1 << 20))))
    model = small_model()
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1 << 62
    refusal(tmp_path, model)


def test_graphs_that_ask_for_more_than_they_are(tmp_path):
    """A few bytes of attributes must not become gigabytes of windows, kernels or products."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)
    one = numpy_helper.from_array(np.ones((1, 1, 1, 1), np.float32), "w")
    long = [
        numpy_helper.from_array(np.ones(shape, np.float32), name)
        for name, shape in (("a", (9000, 1)), ("b", (1, 9000)))
    ]
    far = 2**31 - 8
    for nodes in (
        [helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[1, 1], pads=[0, 0, far, far])],
        [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[far, far], pads=[0, 0, far, far])],
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[0, 0, far, far])],
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[far, far, far, far])],
        [helper.make_node("Mul", ["a", "b"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])],
    ):
        graph = helper.make_graph(nodes, "g", [x], [y], [one, *long])
        refusal(tmp_path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def test_operators_of_others_are_refused(tmp_path):
    model = small_model()
    model.graph.node[0].domain = "com.example"
    model.opset_import.add(domain="com.example", version=1)
    assert "operators or functions of its own (com.example)" in refusal(tmp_path, model)


@pytest.mark.parametrize("name", ["domain", "op_type", "name"])
def test_names_that_are_no_text(name, tmp_path):
    model = small_model()
    setattr(model.graph.node[0], name, "spoil_me")
    assert "a name in it is no text" in refusal(
        tmp_path, model.SerializeToString().replace(b"spoil_me", b"sp\xfflt_me")
    )


def test_no_onnx_at_all(tmp_path):
    for data in (b"", b"not a model", b"\x89HDF\r\n\x1a\n" + b"\0" * 64, os.urandom(200), pickle.dumps({"a": 1})):
        refusal(tmp_path, data)


def test_damaged_models_end_in_our_error(tmp_path):
    """Any byte of a sound model may be another, or missing: an answer or our error, never anything else."""
    sound = small_model().SerializeToString()
    chance = random.Random(7)
    path = tmp_path / "model.onnx"
    outcomes = set()
    for _ in range(300):
        data = bytearray(sound)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(bytes(data[: chance.choice([len(data), chance.randrange(len(data))])]))
        try:
            import_model(str(path), None, tmp_path / "net.prototxt", {})
            outcomes.add("read")
        except PoseidonError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


class Trap:
    """Would leave a file behind if anybody unpickled it."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("name", ["model.pt", "model.pth", "weights.pkl", "pytorch_model.bin"])
def test_pickles_are_refused_unopened(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"w": Trap(tmp_path / "sprung")}, name)
    assert main(["import", name, "-o", "net.prototxt"]) == 1
    assert main(["import", "torch.nn:Identity", name, "-o", "net.prototxt"]) == 1
    assert "a pickled archive can run any code when it is opened: refused" in capsys.readouterr().err
    assert not (tmp_path / "sprung").exists()


READERS = {
    "model.onnx": lambda path: import_model(path, None, path.with_name("n.prototxt"), {}),
    "w.safetensors": lambda path: import_model("torch.nn:Identity", path, path.with_name("n"), {"input": (1, 2)}),
    "w.caffemodel": lambda path: net_to_export(LENET / "net.prototxt", path, Deployment()),
    "w.caffemodel.h5": lambda path: net_to_export(LENET / "net.prototxt", path, Deployment()),
}


@pytest.mark.parametrize("name", READERS)
def test_a_pickle_under_another_name_is_not_run_either(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(PoseidonError):
        READERS[name](path)
    assert not (tmp_path / "sprung").exists()


def test_damaged_weights_do_not_become_a_model(tmp_path):
    data = bytearray((LENET / "init.caffemodel").read_bytes())
    path = tmp_path / "w.caffemodel"
    path.write_bytes(bytes(data[: len(data) // 2]))
    with pytest.raises(PoseidonError):
        net_to_export(LENET / "net.prototxt", path, Deployment())


def test_where_nothing_can_be_written(tmp_path):
    net, _ = net_to_export(LENET / "net.prototxt", LENET / "init.caffemodel", Deployment())
    (tmp_path / "file").write_text("")
    for target in ("onnx", "torch", "safetensors", "hdf5"):
        with pytest.raises(PoseidonError):
            export_net(net, tmp_path / "file" / "out", ExportOptions(target))
