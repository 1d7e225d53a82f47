"""Nets and solvers read from files: lines, names in errors, files that are none."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest

from poseidon.errors import SpecError
from poseidon.spec import NetSource, net_source, parse_net, parse_solver, read_net, read_solver, write_binary
from poseidon.spec.caffe_pb2 import NetParameter

GOLDEN = Path(__file__).parents[1] / "golden"


def lines_by_search(text: str, keyword: str) -> list[int]:
    """Where a keyword opens a line: enough for files that are laid out that way."""
    return [number for number, line in enumerate(text.splitlines(), 1) if line.startswith(f"{keyword} {{")]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("nets/*/net.prototxt")), ids=lambda path: path.parent.name)
def test_lines_of_layers(path: Path) -> None:
    source = read_net(path)
    assert source.filename == str(path)
    lines = list(source.lines)
    if lines and source.net.layer[0].name == "input":  # made from `input:` fields
        assert path.read_text().splitlines()[lines.pop(0) - 1].startswith("input:")
    assert lines == lines_by_search(path.read_text(), "layer")


def test_lines_of_layers_with_one_name() -> None:
    source = parse_net("layer { name: 'x' } layer { name: 'x' }\nlayer { name: 'x' }\n\nlayer { name: 'x' }")
    assert source.lines == (1, 1, 2, 4)


def test_lines_of_old_layers() -> None:
    path = GOLDEN / "formats/upgrade/v1_common/in.prototxt"
    assert list(read_net(path).lines) == lines_by_search(path.read_text(), "layers")


def test_lines_survive_merged_padding_and_inputs_turned_into_a_layer() -> None:
    source = read_net(GOLDEN / "formats/upgrade/v0_runnable/in.prototxt")
    text = (GOLDEN / "formats/upgrade/v0_runnable/in.prototxt").read_text()
    padding, *others = lines_by_search(text, "layers")
    assert source.lines == (2, *others)
    assert padding not in source.lines
    assert text.splitlines()[1].startswith("input:")


def test_place() -> None:
    source = NetSource(NetParameter(), "net.prototxt", (7, 0))
    assert [source.place(0), source.place(1)] == ["net.prototxt:7", "net.prototxt"]


def test_a_net_in_memory_is_copied_and_upgraded() -> None:
    net = NetParameter(input=["data"], input_dim=[1, 2, 3, 4])
    source = net_source(net)
    assert [layer.type for layer in source.net.layer] == ["Input"]
    assert source.lines == (0,)
    assert list(net.input) == ["data"]


def test_an_empty_list_of_inputs() -> None:
    assert parse_net("input: [] layer { name: 'x' }").lines == (1,)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.prototxt: no such file; check the path"):
        read_net(tmp_path / "none.prototxt")


def test_folder_instead_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="found a folder, expected a file"):
        read_solver(tmp_path)


def test_socket_instead_of_a_file(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        with pytest.raises(SpecError, match="found a device or socket, expected a file"):
            read_net(tmp_path / "s")


def test_a_path_that_cannot_be() -> None:
    with pytest.raises(SpecError, match=r"cannot be read: .*null"):
        read_net("a\0b")


def test_weights_instead_of_text(tmp_path: Path) -> None:
    net = NetParameter(name="n")
    net.layer.add(name="x").blobs.add(data=np.zeros(9))
    write_binary(net, tmp_path / "n.caffemodel")
    with pytest.raises(SpecError, match=r"n\.caffemodel:\d+:\d+: found .*is this a binary file\?|found '\\x01'"):
        read_net(tmp_path / "n.caffemodel")


def test_hdf5_instead_of_text() -> None:
    path = next(GOLDEN.rglob("*.h5"))
    with pytest.raises(SpecError, match="found an HDF5 file, expected a Caffe protobuf file"):
        read_net(path)


def test_invalid_utf8(tmp_path: Path) -> None:
    path = tmp_path / "n.prototxt"
    path.write_bytes(b"# gr\xfc\xdf\nlayer { name: '\xff' }")
    with pytest.raises(SpecError, match=r"n\.prototxt:2:15: found byte 0xff, expected UTF-8"):
        read_net(path)
    path.write_bytes(b"# gr\xfc\xdf\nlayer { name: 'a' }")
    assert read_net(path).net.layer[0].name == "a"


def test_a_pipe_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["sh", "-c", f"echo \"name: 'piped'\" > '{tmp_path}/pipe'"]):
        assert read_net(tmp_path / "pipe").net.name == "piped"


def test_an_oversized_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.prototxt"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SpecError, match=r"found 1099511627776 bytes, expected at most \d+; is this a prototxt\?"):
        read_net(path)


def test_solver_both_types() -> None:
    with pytest.raises(SpecError) as error:
        parse_solver("type: 'Adam'\nsolver_type: SGD", "s.prototxt")
    assert str(error.value) == (
        's.prototxt:2: found both type: "Adam" and the older solver_type: SGD, expected one of them; remove solver_type'
    )


@pytest.mark.parametrize(
    ("text", "prefix"),
    [("", "{}/a.b"), ("snapshot_prefix: 'x/y'", "x/y"), ("snapshot_prefix: '{}'", "{}/a.b")],
    ids=["unset", "set", "folder"],
)
def test_snapshots_are_named_after_the_solver(tmp_path: Path, text: str, prefix: str) -> None:
    path = tmp_path / "a.b.prototxt"
    path.write_text(text.format(tmp_path))
    assert read_solver(path).snapshot_prefix == prefix.format(tmp_path)


def test_solver_from_text_gets_no_prefix() -> None:
    assert not parse_solver("base_lr: 1").HasField("snapshot_prefix")
