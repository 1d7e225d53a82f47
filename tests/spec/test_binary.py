"""Binary files: Caffe's own, damaged ones and hostile ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from google.protobuf.message import Message
from hypothesis import example, given, settings
from hypothesis import strategies as st

from poseidon.errors import SpecError
from poseidon.spec import binary, parse_binary, read_binary, read_weights_proto, serialize, write_binary
from poseidon.spec.caffe_pb2 import BlobProto, BlobProtoVector, Datum, NetParameter, SolverParameter, SolverState
from tests.spec.messages import messages

GOLDEN = Path(__file__).parents[1] / "golden"
KINDS: list[type[Message]] = [NetParameter, SolverState, BlobProto, BlobProtoVector, Datum, SolverParameter]
MODELS = sorted(GOLDEN.rglob("*.caffemodel"))
STATES = sorted(GOLDEN.rglob("*.solverstate"))
MEANS = sorted(GOLDEN.rglob("*.binaryproto"))


def test_there_is_something_to_read() -> None:
    assert MODELS
    assert STATES
    assert MEANS


@pytest.mark.parametrize(
    ("path", "kind"),
    [*((p, NetParameter) for p in MODELS), *((p, SolverState) for p in STATES), *((p, BlobProto) for p in MEANS)],
    ids=lambda value: str(value.relative_to(GOLDEN)) if isinstance(value, Path) else "",
)
def test_caffes_files_round_trip_to_the_byte(path: Path, kind: type[Message], tmp_path: Path) -> None:
    message = read_binary(path, kind)
    write_binary(message, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == path.read_bytes()


def test_weights_of_an_old_model_are_upgraded_as_caffes_tool_does() -> None:
    folder = GOLDEN / "formats" / "legacy_models" / "v1_binary_4d_blobs"
    assert len(read_binary(folder / "model.caffemodel", NetParameter).layers) > 0
    assert read_weights_proto(folder / "model.caffemodel") == read_binary(folder / "upgraded.caffemodel", NetParameter)


@pytest.mark.parametrize("cut", [1, 2, 10, 100])
def test_a_truncated_model_is_named(tmp_path: Path, cut: int) -> None:
    data = (GOLDEN / "formats/legacy_models/v2_binary_with_diff/model.caffemodel").read_bytes()[:-cut]
    path = tmp_path / "cut.caffemodel"
    path.write_bytes(data)
    with pytest.raises(SpecError) as error:
        read_weights_proto(path)
    assert str(error.value).startswith(f"{path}: not a NetParameter: truncated at byte {len(data)}: field 100 at byte ")
    assert str(error.value).endswith("; copy or download the file again")


def test_text_instead_of_binary(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text("name: 'x'\nlayer { }\n")
    with pytest.raises(SpecError, match=r"net\.prototxt: not a NetParameter: it is text; read it as prototxt"):
        read_weights_proto(path)


def test_hdf5_instead_of_protobuf() -> None:
    with pytest.raises(SpecError, match=r"found an HDF5 file, expected a Caffe protobuf file; .* \.h5"):
        read_binary(next(GOLDEN.rglob("*.h5")), NetParameter)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such file"):
        read_binary(tmp_path / "none", Datum)
    with pytest.raises(SpecError, match="found a folder"):
        read_binary(tmp_path, Datum)


def test_files_beyond_protobufs_limit_are_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.caffemodel"
    with open(path, "wb") as file:
        file.truncate(2**31)
    with pytest.raises(SpecError, match=r"found 2147483648 bytes, expected at most 2147483647; .*use HDF5"):
        read_weights_proto(path)


def test_a_model_without_layers(tmp_path: Path) -> None:
    write_binary(NetParameter(name="n"), tmp_path / "n")
    with pytest.raises(SpecError, match="found no layers, expected the weights of a net"):
        read_weights_proto(tmp_path / "n")


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (
            b"\xa2\x06\x00" * 200_001,
            NetParameter,
            "found more than 200000 messages or 1000000 fields in a NetParameter",
        ),
        (b"\x12\x00" * 200_001, NetParameter, "found more than 200000 messages"),
        (b"\x0a\x00" * 200_001, BlobProtoVector, "found more than 200000 messages"),
        (b"\x20\x00" * 1_000_001, NetParameter, "1000000 fields"),
        (b"\xa2\x06\x06" + b"\x32\x00\x32\x00\x32\x00", None, ""),
    ],
    ids=["layers", "old layers", "blobs", "inputs", "few"],
)
def test_small_files_cannot_ask_for_much(data: bytes, kind: type[Message] | None, message: str) -> None:
    if kind is None:
        assert len(parse_binary(data, NetParameter).layer[0].param) == 3
        return
    with pytest.raises(SpecError, match=message):
        parse_binary(data, kind)


def test_nested_messages_count_too() -> None:
    layer = b"\x32\x00" * 100_001
    data = (b"\xa2\x06\xc2\x9a\x0c" + layer) * 2
    assert len(NetParameter.FromString(data).layer[1].param) == 100_001
    with pytest.raises(SpecError, match="found more than 200000 messages"):
        parse_binary(data, NetParameter)


def test_strings_must_be_utf8() -> None:
    with pytest.raises(SpecError, match=r"x: found b'\\xff' in NetParameter\.name, expected UTF-8"):
        parse_binary(b"\x0a\x01\xff", NetParameter, "x")
    with pytest.raises(SpecError, match=r"in NetParameter\.layer\.bottom, expected UTF-8"):
        parse_binary(b"\xa2\x06\x03\x1a\x01\xff", NetParameter)


def test_required_fields() -> None:
    net = NetParameter()
    net.layer.add(type="Clip").clip_param.min = 1
    with pytest.raises(
        SpecError, match=r"m: found no layer\[0\]\.clip_param\.max, expected a value: the field is required"
    ):
        parse_binary(net.SerializePartialToString(), NetParameter, "m")
    with pytest.raises(SpecError, match=r"m: found no layer\[0\]\.clip_param\.max in the NetParameter"):
        serialize(net, "m")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x0a\x05ab", "truncated at byte 4: field 1 at byte 0 has 5 bytes, 2 are there"),
        (b"\x08", "truncated at byte 1: a number begins at byte 1 and does not end"),
        (b"\x08\x80", "truncated at byte 2: a number begins at byte 1 and does not end"),
        (b"\x00\x01\x02", "damaged at byte 0: field number 0 of wire type 0"),
        (b"\x0f\xff", "damaged at byte 0: field number 1 of wire type 7"),
        (b"\x08" + b"\xff" * 11, "damaged at byte 1: a number of more than 10 bytes"),
        (b"\x4d\x01\x02", "truncated at byte 3: field 9 at byte 0 has 4 bytes, 2 are there"),
        (b"\x49\x01\x02", "truncated at byte 3: field 9 at byte 0 has 8 bytes, 2 are there"),
        (b"\xa2\x06\x03\x0a\x05\xff", "damaged inside a field"),
    ],
)
def test_damage_is_located(data: bytes, message: str) -> None:
    with pytest.raises(SpecError) as error:
        parse_binary(data, NetParameter, "m")
    assert str(error.value) == f"m: not a NetParameter: {message}; copy or download the file again"


def test_writing_keeps_the_old_file_when_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(b"old")
    net = NetParameter()
    net.layer.add(type="Clip").clip_param.min = 1
    with pytest.raises(SpecError, match="required"):
        write_binary(net, path)
    assert path.read_bytes() == b"old"


def test_writing_follows_links_and_the_umask(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_binary(NetParameter(name="n"), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert read_binary(tmp_path / "target", NetParameter).name == "n"
    (tmp_path / "plain").write_bytes(b"")
    assert os.stat(tmp_path / "target").st_mode == os.stat(tmp_path / "plain").st_mode


def test_writing_over_a_folder(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    with pytest.raises(SpecError, match="cannot be written"):
        write_binary(NetParameter(), tmp_path / "f")
    assert os.listdir(tmp_path) == ["f"]


def test_devices_are_written_to_and_not_replaced() -> None:
    write_binary(NetParameter(name="n"), os.devnull)
    assert Path(os.devnull).is_char_device()


def test_messages_beyond_protobufs_limit_are_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(binary, "MAX_BINARY_BYTES", 5)
    write_binary(NetParameter(name="nam"), tmp_path / "m")
    with pytest.raises(
        SpecError, match=r"m: the NetParameter has 6 bytes, expected at most 5, .*write HDF5 \(\.h5\) instead"
    ):
        write_binary(NetParameter(name="name"), tmp_path / "m")


@given(st.sampled_from(KINDS).flatmap(messages))
@settings(max_examples=200, deadline=None)
def test_what_is_written_reads_back(message: Message) -> None:
    assert parse_binary(serialize(message), type(message)) == message


@given(st.binary(), st.sampled_from(KINDS))
@example(b"\x0b\x0c", NetParameter)
@settings(max_examples=500, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes, kind: type[Message]) -> None:
    try:
        message = parse_binary(data, kind)
    except SpecError:
        return
    assert parse_binary(serialize(message), kind) == message


MODEL = min(MODELS, key=lambda path: path.stat().st_size).read_bytes()


@given(st.integers(0, len(MODEL) - 1), st.integers(0, 4), st.binary(max_size=6))
@settings(max_examples=500, deadline=None)
def test_damaged_models_are_read_or_refused(position: int, dropped: int, inserted: bytes) -> None:
    damaged = MODEL[:position] + inserted + MODEL[position + dropped :]
    try:
        net = parse_binary(damaged, NetParameter)
    except SpecError:
        return
    assert isinstance(net.name, str)
