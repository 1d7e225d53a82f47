"""What is found in files of every kind, against what was put into them; and that damaged ones give our error."""

from __future__ import annotations

import contextlib
import json
import shutil
import struct
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from poseidon.cli import main
from poseidon.errors import DataError, PoseidonError
from poseidon.inspect import Kind, compare, open_contents, recognise, statistics_of
from poseidon.inspect.difference import Verdict
from poseidon.net import Net
from poseidon.net.weights import save_weights
from poseidon.spec import parse_net

GOLDEN = Path(__file__).parents[1] / "golden" / "formats"
STATE = GOLDEN / "logs" / "train_resume" / "snap_iter_4.solverstate"
WEIGHTS = GOLDEN / "legacy_models" / "v1_binary_4d_blobs" / "model.caffemodel"
LMDB = GOLDEN / "data" / "lmdb_color_raw" / "db"
LEVELDB = GOLDEN / "data" / "leveldb_gray_raw_log" / "db"
MEAN = GOLDEN / "data" / "lmdb_color_raw" / "mean.binaryproto"
NET = """
name: "small"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 4 weight_filler { type: "gaussian" std: 1 } } }
layer { name: "relu" type: "ReLU" bottom: "ip" top: "ip" }
"""


# -- ONNX by hand ---------------------------------------------------------------------------------------------------
def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out, value = out + bytes([value % 128 + 128]), value // 128
    return out + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field * 8) + varint(value)


def message(field: int, *inside: bytes | str) -> bytes:
    value = b"".join(part.encode() if isinstance(part, str) else part for part in inside)
    return varint(field * 8 + 2) + varint(len(value)) + value


def onnx_model() -> bytes:
    weight = message(
        5, number(1, 4), number(1, 3), number(2, 1), message(8, "w"), message(9, struct.pack("<12f", *range(12)))
    )
    bias = message(5, message(1, varint(4)), number(2, 1), message(4, struct.pack("<4f", 1, 2, 3, 4)), message(8, "b"))
    shape = message(5, number(1, 2), number(2, 7), message(7, varint(2) + varint((1 << 64) - 1)), message(8, "unread"))
    far = message(5, number(1, 9), number(2, 1), message(8, "far"), number(14, 1))
    node = message(
        1, message(1, "x"), message(1, "w"), message(1, "b"), message(2, "y"), message(3, "fc"), message(4, "Gemm")
    )
    dims = message(2, message(1, message(2, "N")), message(1, number(1, 3)))
    x = message(11, message(1, "x"), message(2, message(1, number(1, 1), dims)))
    graph = message(7, node, message(2, "main"), weight, bias, shape, far, x, message(12, message(1, "y")))
    return number(1, 8) + message(2, "hand") + message(3, "1.0") + graph + message(8, message(1, ""), number(2, 17))


@pytest.fixture
def files(tmp_path):
    """One small file of each kind that is not among the golden ones."""
    net = Net(parse_net(NET), phase="TEST", seed=1)
    save_weights(net, tmp_path / "new.caffemodel")
    save_weights(net, tmp_path / "new.caffemodel.h5")
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text('net: "net.prototxt"\nbase_lr: 0.01\nmax_iter: 7\nsolver_mode: CPU\n')
    (tmp_path / "model.onnx").write_bytes(onnx_model())
    tensors = {"ip.weight": net.params["ip"][0].detach().clone(), "ip.bias": torch.ones(4, dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"made": "by hand"})
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["data"] = np.arange(12, dtype="f4").reshape(3, 4)
        file["label"] = np.array([[5.0], [6.0], [7.0]])
        file["elsewhere"] = h5py.ExternalLink("/etc/passwd", "/x")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("net.prototxt", Kind.NET),
        ("solver.prototxt", Kind.SOLVER),
        ("new.caffemodel", Kind.WEIGHTS),
        ("new.caffemodel.h5", Kind.HDF5),
        ("model.onnx", Kind.ONNX),
        ("model.safetensors", Kind.SAFETENSORS),
        ("rows.h5", Kind.HDF5),
        (STATE, Kind.STATE),
        (WEIGHTS, Kind.WEIGHTS),
        (LMDB, Kind.LMDB),
        (LMDB / "data.mdb", Kind.LMDB),
        (LEVELDB, Kind.LEVELDB),
        (MEAN, Kind.BLOB),
    ],
)
def test_files_are_recognised_by_their_contents(files, name, kind):
    original = files / name
    renamed = files / "renamed.txt"
    if original.is_dir() or original.suffix == ".mdb":
        assert recognise(original) is kind
        return
    shutil.copy(original, renamed)
    assert recognise(renamed) is kind
    with open_contents(renamed) as contents:
        assert contents.num_bytes == renamed.stat().st_size


def facts(contents) -> dict:
    return dict(contents.facts)


def test_weights_with_their_statistics(files):
    with open_contents(files / "new.caffemodel") as contents:
        assert facts(contents) == {"name": "small", "layers": 3, "parameters": 16}
        layer = contents.parts[1]
        assert (layer.name, layer.kind, layer.flow) == ("ip", "InnerProduct", "data -> ip")
        assert [(a.name, a.shape, a.dtype, a.num_bytes) for a in layer.arrays] == [
            ("0", (4, 3), "float32", 48),
            ("1", (4,), "float32", 16),
        ]
        values = layer.arrays[0].read()
        found = statistics_of(values)
    double = values.astype("f8")
    assert found.least == double.min()
    assert found.largest == double.max()
    assert found.mean == pytest.approx(double.mean())
    assert found.deviation == pytest.approx(double.std())


def test_statistics_of_unusual_values():
    found = statistics_of(np.array([np.nan, np.inf, 0, -3, 0, 1]))
    assert (found.least, found.largest, found.not_finite) == (-3, 1, 2)
    assert found.mean == pytest.approx(-0.5)
    assert found.zeros == pytest.approx(2 / 6)
    assert statistics_of(np.array([np.nan])).mean is None
    assert statistics_of(np.zeros(0)).largest is None
    offset = 1e6 + np.array([0.0, 1.0] * 1_000_000)
    assert statistics_of(offset).deviation == pytest.approx(0.5)


def test_nets_are_built_for_their_shapes_and_those_that_would_run_are_not(files):
    with open_contents(files / "net.prototxt") as contents:
        assert contents.parts[1].flow == "data -> ip (2 x 4)"
        assert [a.shape for a in contents.parts[1].arrays] == [(4, 3), (4,)]
    python = files / "python.prototxt"
    python.write_text('layer { name: "p" type: "Python" top: "x" python_param { module: "no" layer: "No" } }')
    with open_contents(python) as contents:
        assert facts(contents)["shapes"] == "not known: layer 'p' (Python) would have to run; give the deploy net"
    broken = files / "broken.prototxt"
    broken.write_text('layer { name: "r" type: "Relu" bottom: "x" top: "x" }')
    with open_contents(broken) as contents:
        assert facts(contents)["shapes"].startswith("not known: ")
    with open_contents(files / "solver.prototxt") as contents:
        assert facts(contents)["base_lr"] == 0.01
        assert facts(contents)["solver_mode"] == "CPU"


def test_solver_state():
    with open_contents(STATE) as contents:
        assert facts(contents) == {"iteration": 4, "current step": 1, "weights": "snap_iter_4.caffemodel"}
        assert [a.shape for a in contents.parts[0].arrays] == [(8, 6), (8,), (3, 8), (3,)]


def test_databases():
    with open_contents(LMDB, num_records=2) as contents:
        assert len(contents.records) == 2
        first = contents.records[0]
        assert len(first.shape) == 3
        assert first.note.startswith("raw, ")
    with open_contents(LMDB / "data.mdb", num_records=1) as inside:
        assert inside.records[0] == first
    with open_contents(LEVELDB) as contents:
        assert facts(contents)["records"] >= len(contents.records) > 0


def test_mean():
    with open_contents(MEAN) as contents:
        values = contents.parts[0].arrays[0].read()
        shown = facts(contents)["mean per channel"].split(", ")
    assert [float(one) for one in shown] == pytest.approx(list(values.reshape(3, -1).mean(1)), abs=1e-3)


def test_safetensors(files):
    with open_contents(files / "model.safetensors") as contents:
        assert facts(contents) == {"tensors": 2, "note made": "by hand"}
        arrays = {array.name: array for array in contents.parts[0].arrays}
        assert contents.parts[0].name == "ip"
        assert (arrays["bias"].dtype, arrays["bias"].num_bytes) == ("BF16", 8)
        assert arrays["bias"].read().tolist() == [1, 1, 1, 1]


def test_hdf5_rows_and_links(files):
    with open_contents(files / "rows.h5") as contents:
        assert facts(contents) == {"datasets": 2, "link, not followed": "elsewhere"}
        assert [(record.key, record.label, record.shape) for record in contents.records] == [
            ("row 0", 5, (4,)),
            ("row 1", 6, (4,)),
            ("row 2", 7, (4,)),
        ]


def test_onnx(files):
    with open_contents(files / "model.onnx") as contents:
        known = facts(contents)
        assert (known["graph"], known["IR version"], known["producer"], known["opset"]) == (
            "main",
            8,
            "hand 1.0",
            "ai.onnx 17",
        )
        assert (known["input"], known["output"]) == ("x: N x 3 float32", "y")
        node, rest = contents.parts
        assert (node.name, node.kind, node.flow) == ("fc", "Gemm", "x -> y")
        assert [(a.name, a.shape, a.dtype) for a in node.arrays] == [("w", (4, 3), "float32"), ("b", (4,), "float32")]
        np.testing.assert_array_equal(node.arrays[0].read(), np.arange(12).reshape(4, 3))
        np.testing.assert_array_equal(node.arrays[1].read(), [1, 2, 3, 4])
        unread, far = rest.arrays
        assert unread.read().tolist() == [2, -1]
        assert (far.dtype, far.read) == ("float32, in another file", None)


# -- differences ----------------------------------------------------------------------------------------------------
def differences(first: Path, second: Path) -> dict:
    with open_contents(first) as a, open_contents(second) as b:
        return {(entry.part, entry.array): entry for entry in compare(a, b)}


def test_the_same_weights_in_other_formats_have_no_difference(files):
    for other in ("new.caffemodel", "new.caffemodel.h5", "net.prototxt"):
        found = differences(files / "new.caffemodel", files / other)
        assert found[("ip", "0")].verdict is Verdict.SAME
        assert {entry.verdict for entry in found.values()} == {Verdict.SAME}


def test_what_differs_is_named(files):
    net = Net(parse_net(NET.replace('"relu"', '"gone"').replace("num_output: 4", "num_output: 5")), phase="TEST")
    save_weights(net, files / "other.caffemodel")
    found = differences(files / "new.caffemodel", files / "other.caffemodel")
    assert found[("ip", "0")].verdict is Verdict.SHAPES
    assert found[("ip", "0")].note == "4 x 3, 5 x 3"
    assert found[("ip", "")].note == "num_output: 4, num_output: 5"
    assert found[("relu", "")].verdict is Verdict.ONLY_FIRST
    assert found[("gone", "")].verdict is Verdict.ONLY_SECOND


def test_names_that_differ_go_by_position(files):
    save_file({"ip.a": torch.full((4, 3), 2.0), "ip.b": torch.zeros(4)}, files / "a.safetensors")
    save_file({"ip.c": torch.full((4, 3), 2.0), "ip.d": torch.tensor([0, 0, 0, 0.5])}, files / "b.safetensors")
    found = differences(files / "a.safetensors", files / "b.safetensors")
    assert found[("ip", "a")].verdict is Verdict.SAME
    assert (found[("ip", "b")].verdict, found[("ip", "b")].largest) == (Verdict.VALUES, 0.5)


def test_values_that_are_not_numbers(files):
    one = {"x.w": torch.tensor([1.0, float("nan"), float("inf"), 4.0])}
    save_file(one, files / "a.safetensors")
    save_file({"x.w": torch.tensor([1.0, float("nan"), float("inf"), 5.0])}, files / "b.safetensors")
    save_file({"x.w": torch.tensor([1.0, 2.0, float("inf"), 4.0])}, files / "c.safetensors")
    assert differences(files / "a.safetensors", files / "b.safetensors")[("x", "w")].largest == 1
    assert differences(files / "a.safetensors", files / "c.safetensors")[("x", "w")].largest == float("inf")


# -- the command ----------------------------------------------------------------------------------------------------
def test_json_is_json(files, capsys):
    assert main(["inspect", "--json", str(files / "new.caffemodel")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "weights (caffemodel)"
    array = told["layers"][1]["arrays"][0]
    assert (array["shape"], array["dtype"]) == ([4, 3], "float32")
    assert set(array["statistics"]) == {"min", "max", "mean", "std", "zeros", "not_finite"}
    assert main(["inspect", "--json", "--brief", str(files / "new.caffemodel")]) == 0
    assert "statistics" not in capsys.readouterr().out


def test_tables(files, capsys):
    assert main(["inspect", str(files / "new.caffemodel")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{files}/new.caffemodel: weights (caffemodel), ")
    assert any(line.split()[:6] == ["ip", "InnerProduct", "data", "->", "ip", "0"] for line in lines)
    assert main(["inspect", str(LMDB), "--records", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[0].startswith("00000")


def test_diff_tells_by_its_exit_code(files, capsys):
    assert main(["inspect", "--diff", str(files / "new.caffemodel"), str(files / "new.caffemodel.h5")]) == 0
    assert capsys.readouterr().out == "no difference\n"
    assert main(["inspect", "--diff", str(files / "new.caffemodel"), str(WEIGHTS)]) == 1
    assert "only in the first" in capsys.readouterr().out
    assert main(["inspect", "--diff", "--json", str(files / "new.caffemodel"), str(WEIGHTS)]) == 1
    assert {entry["verdict"] for entry in json.loads(capsys.readouterr().out)} >= {"only in the first"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected 1 file(s), got 0"),
        (["--diff", "x"], "expected 2 file(s), got 1"),
        (["x", "--records", "-1"], "--records: expected at least 0, got -1"),
        (["/nowhere"], "/nowhere: no such file or folder"),
        (["/dev/null"], "/dev/null: found a device, pipe or socket"),
    ],
)
def test_wrong_use(words, message, capsys):
    assert main(["inspect", *words]) == 1
    assert message in capsys.readouterr().err


# -- what is damaged or made to harm --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "found an empty file"),
        (b"hello world\n", "neither a net nor a solver"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 64, "an unknown format"),
        (b"\x12\xff\xff\xff\xff\x0f", "truncated"),
        (b"\xf8\x07\x01", "found protobuf fields 127"),
    ],
)
def test_files_of_no_kind(tmp_path, data, message):
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message):
        recognise(path)


def test_folders_of_no_kind(tmp_path):
    with pytest.raises(DataError, match=r"a folder without data.mdb \(LMDB\) or CURRENT"):
        recognise(tmp_path)


def look(path: Path) -> None:
    """Everything the command would read."""
    with open_contents(path) as contents:
        for part in contents.parts:
            for array in part.arrays:
                if array.read is not None:
                    statistics_of(array.read())


@pytest.mark.parametrize("name", ["new.caffemodel", "new.caffemodel.h5", "model.onnx", "model.safetensors", "rows.h5"])
def test_truncated_files_are_read_or_refused(files, name):
    data = (files / name).read_bytes()
    target = files / "cut"
    for keep in [0, 1, 7, 9, *range(16, len(data), max(len(data) // 40, 1))]:
        target.write_bytes(data[:keep])
        problems = []
        try:
            look(target)
        except PoseidonError as problem:
            problems.append(str(problem))
        assert all(str(target) in problem for problem in problems)


def test_a_model_of_too_many_messages_is_refused(tmp_path):
    path = tmp_path / "many.onnx"
    path.write_bytes(number(1, 8) + message(7, message(1, b"") * 200_001))
    with pytest.raises(DataError, match="more than 200000 messages"):
        look(path)


def test_shapes_that_no_values_fit(tmp_path):
    path = tmp_path / "wrong.onnx"
    tensor = message(5, number(1, 1 << 40), number(2, 1), message(8, "w"), message(9, b"\0" * 8))
    path.write_bytes(number(1, 8) + message(7, tensor))
    with pytest.raises(DataError, match=r"tensor 'w' of shape \(1099511627776,\) is damaged"):
        look(path)


@settings(max_examples=150)
@given(data=st.data())
def test_changed_bytes_give_our_error_or_none(data, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    whole = data.draw(
        st.sampled_from([onnx_model(), WEIGHTS.read_bytes(), STATE.read_bytes(), MEAN.read_bytes()[:400]])
    )
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    path = folder / "changed"
    path.write_bytes(bytes(changed))
    with contextlib.suppress(PoseidonError):
        look(path)
