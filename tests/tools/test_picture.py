"""Drawings of nets: what a picture holds, the text for Graphviz, and what happens without Graphviz."""

from __future__ import annotations

import re
import stat
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from poseidon.cli import main
from poseidon.errors import UsageError
from poseidon.spec import parse_net
from poseidon.tools.graphviz import dot_text, render
from poseidon.tools.picture import Kind, PictureEdge, PictureOptions, picture_of

NET = """
name: "tiny"
layer { name: "data" type: "Data" top: "x" top: "t" include { phase: TRAIN } data_param { batch_size: 32 } }
layer { name: "in" type: "Input" top: "x" include { phase: TEST } input_param { shape { dim: 1 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "c" param { lr_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 20 kernel_h: 3 kernel_w: 5 stride: 2 } }
layer { name: "relu" type: "ReLU" bottom: "c" top: "c" }
layer { name: "pool" type: "Pooling" bottom: "c" top: "p" pooling_param { pool: AVE kernel_size: 2 pad: 1 } }
layer { name: "all" type: "Pooling" bottom: "p" top: "g" pooling_param { global_pooling: true } }
layer { name: "ip" type: "InnerProduct" bottom: "g" top: "y" inner_product_param { num_output: 10 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "t" top: "l" include { phase: TRAIN } }
"""


def nodes(**options):
    return {
        node.words[0]: node for node in picture_of(parse_net(NET), PictureOptions(**options)).nodes if node.is_layer
    }


def test_words_and_colours_of_layers():
    found = nodes()
    assert found["data"].words == ("data", "(Data)")
    assert found["conv"].words == ("conv", "(Convolution)", "kernel size: 3x5", "stride: 2", "pad: 0")
    assert found["pool"].words == ("pool", "(Pooling AVE)", "kernel size: 2", "stride: 1", "pad: 1")
    assert found["all"].words == ("all", "(Pooling MAX)", "global")
    assert {name: node.kind.value for name, node in found.items()} == {
        "data": "#6495ED",
        "in": "#6495ED",
        "conv": "#FF5050",
        "relu": "#90EE90",
        "pool": "#FF9900",
        "all": "#FF9900",
        "ip": "#CC33FF",
        "loss": "#6495ED",
    }


def test_multipliers_on_request():
    found = nodes(multipliers=True)
    assert found["conv"].words[-1] == "lr mult: 1.0, 2.0"
    assert found["ip"].words[-1] == "lr mult: 1.0, 1.0"
    assert found["relu"].words == ("relu", "(ReLU)")


def test_notes_for_whoever_knows_more():
    picture = picture_of(
        parse_net(NET), PictureOptions(notes={"ip": ["100 kB", "ring"]}, blob_notes={"y": ["32 x 10"]})
    )
    words = {node.words[0]: node.words for node in picture.nodes}
    assert words["ip"][-2:] == ("100 kB", "ring")
    assert words["y"] == ("y", "32 x 10")


def test_blobs_and_edges():
    picture = picture_of(parse_net(NET))
    blobs = {node.words[0]: node.kind for node in picture.nodes if not node.is_layer}
    assert blobs == {**dict.fromkeys("xcpgyt", Kind.BLOB), "l": Kind.OUTPUT}
    keys = {node.words[0]: node.key for node in picture.nodes if node.is_layer}
    assert PictureEdge(keys["data"], "blob x", "Batch 32") in picture.edges
    assert PictureEdge(keys["conv"], "blob c", "20") in picture.edges
    assert PictureEdge("blob c", keys["relu"]) in picture.edges
    assert PictureEdge(keys["relu"], "blob c") in picture.edges
    assert all(not edge.label for edge in picture_of(parse_net(NET), PictureOptions(edge_labels=False)).edges)
    assert len(picture.edges) == 2 + 1 + 2 + 2 + 2 + 2 + 2 + 3


def test_layers_of_one_name_stay_apart():
    twice = (
        'layer { name: "a" type: "ReLU" bottom: "x" top: "y" } layer { name: "a" type: "ReLU" bottom: "x" top: "z" }'
    )
    assert len([node for node in picture_of(parse_net(twice)).nodes if node.is_layer]) == 2


# -- Graphviz ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("rankdir", "separator"), [("LR", r"\n"), ("RL", r"\n"), ("TB", " "), ("BT", " ")])
def test_words_go_across_the_drawing(rankdir, separator):
    text = dot_text(picture_of(parse_net(NET)), rankdir)
    assert f"rankdir={rankdir};" in text
    assert f'"conv{separator}(Convolution){separator}kernel size: 3x5' in text
    assert text.startswith('digraph "tiny" {\n')


def test_characters_with_a_meaning_are_escaped():
    source = parse_net(r'layer { name: "a|b{c}<d>\"e\"\\f" type: "ReLU" bottom: "x\"y" top: "z\\" }')
    text = dot_text(picture_of(source))
    assert r'label="a\|b\{c\}\<d\>\"e\"\\f\n(ReLU)"' in text
    assert r'"blob x\"y" [label="x\"y", shape=octagon' in text
    assert r'"blob z\\" [label="z\\"]' in text
    # Outside of strings nothing but Graphviz's own words is left.
    assert re.fullmatch(r"[\w\s{}\[\];=,>-]*", re.sub(r'"(?:[^"\\]|\\.)*"', "", text))


def test_an_unknown_direction():
    with pytest.raises(UsageError, match="one of LR, RL, TB, BT, got 'UP'"):
        dot_text(picture_of(parse_net(NET)), "UP")


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    return tmp_path


def install_dot(here: Path, script: str) -> None:
    """A `dot` that does what the script says."""
    program = here / "bin" / "dot"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_dot_draws(here, capsys):
    install_dot(here, 'echo "<svg format=\\"$1\\"><![CDATA["; cat; echo "]]></svg>"')
    assert main(["draw-net", "net.prototxt", "net.svg", "--phase=TEST", "--rankdir", "BT"]) == 0
    assert capsys.readouterr().out == "Drawing net to net.svg\n"
    drawn = ElementTree.fromstring((here / "net.svg").read_text())
    assert drawn.get("format") == "-Tsvg"
    assert "rankdir=BT" in drawn.text
    assert "(Input)" in drawn.text
    assert "(Data)" not in drawn.text
    assert "SoftmaxWithLoss" not in drawn.text


def test_what_dot_cannot_is_told(here, capsys):
    install_dot(here, 'echo "Format: \\"foo\\" not recognized" >&2; exit 1')
    assert main(["draw-net", "net.prototxt", "net.foo"]) == 1
    expected = "Graphviz cannot draw as 'foo': Format: \"foo\" not recognized; svg, png and pdf usually work"
    assert capsys.readouterr().err == f"poseidon: error: {expected}\n"
    assert not (here / "net.foo").exists()


def test_without_graphviz(here, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(here / "bin"))
    assert main(["draw-net", "net.prototxt", "net.png"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("poseidon: error: drawing as 'png' needs Graphviz, whose program `dot` is not on the PATH")
    assert main(["draw-net", "net.prototxt", "net.dot", "--display_lrm"]) == 0
    assert "lr mult: 1.0, 2.0" in (here / "net.dot").read_text()
    assert render("x", "raw") == b"x"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["net.prototxt"], "IMAGE is missing"),
        (["net.prototxt", "net"], "net: what format?"),
        (["gone.prototxt", "net.dot"], "gone.prototxt: no such file"),
        (["net.prototxt", "net.dot", "--phase=BOTH"], "--phase: expected one of ALL, TRAIN, TEST, got 'BOTH'"),
        (["net.prototxt", "net.dot", "--stage=a"], "--level and --stage choose layers of a phase"),
    ],
)
def test_mistakes(words, expected, here, capsys):
    assert main(["draw-net", *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line
