"""Nets in Graphviz's language; `dot` is replaced by a program that says what it was given."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from google.protobuf import text_format

import caffe
import caffe.draw
from caffe.proto import caffe_pb2
from poseidon.errors import UsageError

NET = text_format.Parse(
    """
    name: "a \\"net\\""
    layer { name: "data" type: "Data" top: "data" top: "label" data_param { batch_size: 64 } include { phase: TRAIN } }
    layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { lr_mult: 1 } param { lr_mult: 2.5 }
            convolution_param { num_output: 20 kernel_h: 3 kernel_w: 5 stride: 2 } }
    layer { name: "relu{1}" type: "ReLU" bottom: "conv" top: "conv" }
    layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { pool: AVE kernel_size: 3 } }
    layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip" inner_product_param { num_output: 10 } }
    layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy" exclude { phase: TRAIN } }
    """,
    caffe_pb2.NetParameter(),
)


@pytest.fixture
def no_dot(monkeypatch):
    monkeypatch.setenv("PATH", "")


@pytest.fixture
def dot(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "dot"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\ncase "$1" in -Tbad) echo "no such format" >&2; exit 3;; esac\nprintf "%s " "$1"; cat\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def lines(**options) -> list[str]:
    return caffe.draw.get_pydot_graph(NET, options.pop("rankdir", "LR"), **options).to_string().splitlines()


def test_layers_blobs_and_edges():
    text = [line.strip() for line in lines()]
    assert text[:2] == ['digraph "a \\"net\\"" {', "rankdir=LR;"]
    assert text[-1] == "}"
    nodes = [line for line in text if "[label=" in line and "->" not in line]
    assert len(nodes) == 6 + 6
    assert '"layer 0" -> "blob label" [label="Batch 64"];' in text
    assert '"layer 1" -> "blob conv" [label="20"];' in text
    assert '"layer 4" -> "blob ip" [label="10"];' in text
    assert '"blob conv" -> "layer 3";' in text
    conv = next(line for line in nodes if line.startswith('"layer 1"'))
    assert r"conv\n(Convolution)\nkernel size: 3x5\nstride: 2\npad: 0" in conv
    relu = next(line for line in nodes if "relu" in line)
    assert "relu\\{1\\}" in relu
    assert "#90EE90" in relu
    assert r"(Pooling AVE)\nkernel size: 3\nstride: 1\npad: 0" in next(line for line in nodes if '"layer 3' in line)


def test_directions_phases_and_options():
    assert "ip (InnerProduct)" in "\n".join(lines(rankdir="TB"))
    training = "\n".join(lines(phase=caffe.TRAIN))
    assert "accuracy" not in training
    assert "Batch 64" in training
    testing = "\n".join(lines(phase=caffe.TEST))
    assert "accuracy" in testing
    assert "Batch 64" not in testing
    assert "lr mult: 1.0, 2.5" in "\n".join(lines(display_lrm=True))
    assert 'label="20"' not in "\n".join(lines(label_edges=False))
    with pytest.raises(UsageError, match="one of LR, RL, TB, BT, got 'UP'"):
        lines(rankdir="UP")


def test_every_net_of_the_zoo_is_drawn(no_dot):
    files = [p for p in (Path(__file__).parents[2] / "models").rglob("*.prototxt") if "solver" not in p.name]
    assert len(files) >= 10
    for path in files:
        net = caffe_pb2.NetParameter()
        text_format.Merge(path.read_text(), net)
        with pytest.warns(UserWarning, match="needs Graphviz, whose program `dot`"):
            drawn = caffe.draw.draw_net(net, "LR")
        assert drawn.count(b"->") == sum(len(layer.bottom) + len(layer.top) for layer in net.layer)


def test_through_graphviz(dot, tmp_path):
    assert caffe.draw.draw_net(NET, "LR").startswith(b'-Tpng digraph "a')
    assert caffe.draw.draw_net(NET, "LR", "svg").startswith(b"-Tsvg digraph")
    caffe.draw.draw_net_to_file(NET, str(tmp_path / "net.pdf"), "TB")
    assert (tmp_path / "net.pdf").read_bytes().startswith(b"-Tpdf digraph")
    with pytest.raises(UsageError, match="Graphviz cannot draw as 'bad': no such format"):
        caffe.draw.draw_net(NET, "LR", "bad")


def test_without_graphviz(no_dot, tmp_path):
    caffe.draw.draw_net_to_file(NET, tmp_path / "net.dot")
    assert (tmp_path / "net.dot").read_text().startswith("digraph")
    with pytest.raises(UsageError, match="'png' needs Graphviz, whose program `dot`"):
        caffe.draw.draw_net_to_file(NET, str(tmp_path / "net.png"))
    assert not (tmp_path / "net.png").exists()
