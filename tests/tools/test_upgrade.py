"""upgrade_*_proto_*: the text Caffe's tools write, byte for byte; weights; exit codes and messages of the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from poseidon.cli import main
from poseidon.cli.caffe_tools import upgrade_net_proto_binary, upgrade_net_proto_text, upgrade_solver_proto_text
from poseidon.spec import blob_to_array, caffe_pb2
from poseidon.tools.upgrade import is_text

FORMATS = Path(__file__).parents[1] / "golden" / "formats"
TEXTS = sorted(path.name for path in (FORMATS / "upgrade").iterdir())
WEIGHTS = sorted(path.parent.name for path in (FORMATS / "legacy_models").glob("*/upgraded.caffemodel"))
TOOLS = {"net": upgrade_net_proto_text, "solver": upgrade_solver_proto_text}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", TEXTS)
def test_text_is_caffes(name, here, capsys):
    folder = FORMATS / "upgrade" / name
    kind = (folder / "kind.txt").read_text().strip()
    assert TOOLS[kind]([str(folder / "in.prototxt"), "out"]) == 0
    assert (here / "out").read_text() == (folder / "out.prototxt").read_text()
    what = {"net": "NetParameter", "solver": "SolverParameter"}[kind]
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"] Wrote upgraded {what} text proto to out")
    assert main([f"upgrade-{kind}", str(folder / "in.prototxt"), "again"]) == 0
    assert (here / "again").read_bytes() == (here / "out").read_bytes()


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_caffes(name, here):
    folder = FORMATS / "legacy_models" / name
    assert upgrade_net_proto_binary([str(folder / "model.caffemodel"), "out"]) == 0
    made = caffe_pb2.NetParameter.FromString((here / "out").read_bytes())
    expected = caffe_pb2.NetParameter.FromString((folder / "upgraded.caffemodel").read_bytes())
    assert [(layer.name, layer.type, len(layer.blobs)) for layer in made.layer] == [
        (layer.name, layer.type, len(layer.blobs)) for layer in expected.layer
    ]
    for layer, other in zip(made.layer, expected.layer, strict=True):
        for blob, wanted in zip(layer.blobs, other.blobs, strict=True):
            assert (blob_to_array(blob) == blob_to_array(wanted)).all()
    assert main(["upgrade-net", str(folder / "model.caffemodel"), "again"]) == 0
    assert (here / "again").read_bytes() == (here / "out").read_bytes()


def test_what_is_new_already_is_written_all_the_same(here, capsys):
    (here / "in").write_text('layer { name: "a" type: "ReLU" }')
    assert upgrade_net_proto_text(["in", "out"]) == 0
    assert (here / "out").read_text() == 'layer {\n  name: "a"\n  type: "ReLU"\n}\n'
    assert "] File already in latest proto format: in" in capsys.readouterr().err


def test_a_file_may_be_upgraded_in_its_place(here):
    (here / "s").write_text("solver_type: ADAM")
    assert upgrade_solver_proto_text(["s", "s"]) == 0
    assert (here / "s").read_text() == 'type: "Adam"\n'
    assert [path.name for path in here.iterdir()] == ["s"]


def test_what_has_no_place_any_more_is_told(here, capsys):
    (here / "in").write_text("""
layers { layer { name: "d" type: "data" } top: "x" top: "t" }
layers { layer { name: "a" type: "relu" num_output: 3 } bottom: "x" top: "y" }
""")
    assert upgrade_net_proto_text(["in", "out"]) == 1
    assert (here / "out").exists()
    assert "Encountered error(s) while upgrading prototxt; see details above." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tool", "words", "code", "expected"),
    [
        (upgrade_net_proto_text, [], 1, "IN is missing"),
        (upgrade_net_proto_text, ["in"], 1, "OUT is missing"),
        (upgrade_net_proto_text, ["in", "out", "more"], 1, "'more' is one word too many"),
        (upgrade_net_proto_text, ["gone", "out"], 1, "File not found: gone"),
        (upgrade_net_proto_text, ["in", "out"], 2, "Failed to parse input text file as NetParameter: in:1:"),
        (upgrade_net_proto_binary, ["in", "out"], 2, "Failed to parse input binary file as NetParameter: in: not a"),
        (upgrade_solver_proto_text, ["in", "out"], 2, "Failed to parse input text file as SolverParameter: in:1:"),
        (upgrade_net_proto_text, ["good", "no/where"], 1, "no/where: cannot be written"),
    ],
)
def test_mistakes(tool, words, code, expected, here, capsys):
    (here / "in").write_text("nonsense { }")
    (here / "good").write_text('name: "n"')
    assert tool(words) == code
    wrong = [line for line in capsys.readouterr().err.splitlines() if "latest proto" not in line]
    assert len(wrong) == 1
    assert expected in wrong[0]
    assert sorted(path.name for path in here.iterdir()) == ["good", "in"]


def test_text_is_told_from_weights(here):
    for folder in (FORMATS / "upgrade").iterdir():
        assert is_text(str(folder / "in.prototxt"))
    for path in (FORMATS / "legacy_models").glob("*/*.caffemodel"):
        assert not is_text(str(path))
