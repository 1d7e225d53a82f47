"""draw-net with a plan and with shapes: what each layer has and how it travels stands on the drawing."""

from __future__ import annotations

import re

import pytest

from poseidon.cli import main
from poseidon.plan import PlanRequest, make_plan
from tests.report.runs import CLUSTER, NET, profile

DEPLOY = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 } }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 5 } }
"""


def label_of(text: str, layer: str) -> list[str]:
    found = re.search(rf'label="({re.escape(layer)}\\n\([^"]*)"', text)
    return found[1].split(r"\n")


def test_a_plan_puts_parameters_and_schemes_on_layers(tmp_path, capsys):
    plan = make_plan(profile(), CLUSTER, PlanRequest())
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "plan.json").write_text(plan.to_json())
    assert main(["draw-net", f"{tmp_path}/net.prototxt", f"{tmp_path}/n.dot", f"--plan={tmp_path}/plan.json"]) == 0
    text = (tmp_path / "n.dot").read_text()
    schemes = {name: unit.scheme.name for name, unit in plan.unit_of().items()}
    assert label_of(text, "ip1")[-3:] == ["500 x 3200 + 500", "1.6 M parameters", schemes["ip1/0"]]
    assert label_of(text, "conv1")[-3:] == ["20 x 1 x 5 x 5 + 20", "520 parameters", schemes["conv1/0"]]
    assert label_of(text, "relu2") == ["relu2", "(ReLU)"]


def test_shapes_are_those_of_the_net(tmp_path):
    (tmp_path / "net.prototxt").write_text(DEPLOY)
    assert main(["draw-net", f"{tmp_path}/net.prototxt", f"{tmp_path}/n.dot", "--phase=TEST", "--shapes"]) == 0
    text = (tmp_path / "n.dot").read_text()
    assert label_of(text, "ip")[-2:] == ["5 x 144 + 5", "725 parameters"]
    assert r'label="conv\n2 x 4 x 6 x 6"' in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--plan=gone.json"], "--plan=gone.json: there is no file 'gone.json'"),
        (["--plan=bad.json"], "bad.json: CommPlan: expected JSON"),
        (
            ["--plan=plan.json"],
            "plan.json is the plan of another net: this one has no layer 'conv1', 'conv2'",
        ),
        (
            ["--shapes"],
            "--shapes builds the net, which has one phase at a time: give --phase=TRAIN or --phase=TEST too",
        ),
    ],
)
def test_wrong_use(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(DEPLOY)
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "plan.json").write_text(make_plan(profile(), CLUSTER, PlanRequest()).to_json())
    assert main(["draw-net", "net.prototxt", "n.dot", *words]) == 1
    assert message in capsys.readouterr().err
