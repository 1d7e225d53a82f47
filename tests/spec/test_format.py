"""Written prototxt against files that Caffe's own tools wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from poseidon.errors import SpecError
from poseidon.spec import format_message, parse, read_net, write_text
from poseidon.spec.caffe_pb2 import BlobProto, NetParameter, PowerParameter, SolverParameter

GOLDEN = Path(__file__).parents[1] / "golden" / "formats"
WRITTEN = sorted([*GOLDEN.glob("rules/*/filtered_*.prototxt"), *GOLDEN.glob("upgrade/*/out.prototxt")])


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_caffes_files_come_out_as_they_went_in(path: Path) -> None:
    text = path.read_text()
    kind = SolverParameter if path.parent.name.startswith("solver") else NetParameter
    assert format_message(parse(text, kind())) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.01, "0.01"),
        (1.0, "1"),
        (-0.0, "-0"),
        (1e-8, "1e-08"),
        (100000.0, "100000"),
        (1e6, "1e+06"),
        (16777216.0, "16777216"),
        (0.1234567, "0.1234567"),
        (1 / 3, "0.33333334"),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (float("nan"), "nan"),
        (float(np.finfo(np.float32).max), "3.4028235e+38"),
        (float(np.finfo(np.float32).smallest_subnormal), "1.4013e-45"),
    ],
)
def test_floats_have_as_few_digits_as_identify_them(value: float, text: str) -> None:
    assert format_message(PowerParameter(scale=value)) == f"scale: {text}\n"


@pytest.mark.parametrize(("value", "text"), [(0.1, "0.1"), (1 / 3, "0.3333333333333333"), (1e300, "1e+300")])
def test_doubles(value: float, text: str) -> None:
    assert format_message(BlobProto(double_data=[value])) == f"double_data: {text}\n"


def test_strings_are_escaped_to_ascii() -> None:
    assert format_message(NetParameter(name="a\"b\\c'\n€\x01")) == 'name: "a\\"b\\\\c\\\'\\n\\342\\202\\254\\001"\n'


def test_empty_messages_keep_their_braces() -> None:
    net = NetParameter()
    net.layer.add().relu_param.SetInParent()
    assert format_message(net) == "layer {\n  relu_param {\n  }\n}\n"


def test_write_text(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text("the old one, longer than the new one by far")
    write_text(NetParameter(name="new"), path)
    assert path.read_text() == 'name: "new"\n'
    assert read_net(path).net.name == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["net.prototxt"]


def test_write_text_where_there_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"missing/net\.prototxt: cannot be written: .*No such file"):
        write_text(NetParameter(), tmp_path / "missing" / "net.prototxt")
