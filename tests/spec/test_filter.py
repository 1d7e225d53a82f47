"""Rules against nets that Caffe filtered, and the truth table of each condition."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from poseidon.errors import SpecError
from poseidon.spec import caffe_pb2, filter_by_state, filter_net, format_message, parse, parse_net, read_net, rule_holds
from poseidon.spec.caffe_pb2 import TEST, TRAIN, NetState, NetStateRule

RULES = Path(__file__).parents[1] / "golden" / "formats" / "rules"
CASES = [(path.parent, state) for path in sorted(RULES.glob("*/states.json")) for state in json.loads(path.read_text())]


@pytest.mark.parametrize(
    ("folder", "state"), CASES, ids=lambda value: value.get("filtered") if isinstance(value, dict) else None
)
def test_caffes_filtered_nets(folder: Path, state: dict) -> None:
    source = read_net(folder / "net.prototxt")
    phase = getattr(caffe_pb2, state["phase"])
    filtered = filter_net(source, phase, state["level"], state["stages"])
    assert format_message(filtered.net) == (folder / state["filtered"]).read_text()
    assert [layer.name for layer in filtered.net.layer] == state["layers"]
    line_of = {layer.name: line for layer, line in zip(source.net.layer, source.lines, strict=True)}
    assert [line_of[layer.name] for layer in filtered.net.layer] == list(filtered.lines)
    assert filter_net(filtered, phase, state["level"]) == filtered


@pytest.mark.parametrize(
    ("rule", "state", "holds"),
    [
        ("", "", True),
        ("phase: TRAIN", "phase: TRAIN", True),
        ("phase: TRAIN", "phase: TEST", False),
        ("phase: TEST", "", True),  # a state without phase is TEST
        ("phase: TRAIN", "", False),
        ("min_level: 0", "", True),
        ("min_level: 1", "", False),
        ("min_level: -1", "level: -1", True),
        ("max_level: -1", "", False),
        ("max_level: 3", "level: 3", True),
        ("min_level: 2 max_level: 4", "level: 3", True),
        ("min_level: 2 max_level: 4", "level: 5", False),
        ("stage: 'a'", "stage: 'b' stage: 'a'", True),
        ("stage: 'a' stage: 'b'", "stage: 'a'", False),
        ("not_stage: 'a'", "stage: 'b'", True),
        ("not_stage: 'a' not_stage: 'b'", "stage: 'b'", False),
        ("stage: 'a' not_stage: 'a'", "stage: 'a'", False),
        ("phase: TRAIN stage: 'a'", "phase: TRAIN", False),
    ],
)
def test_rules(rule: str, state: str, holds: bool) -> None:
    assert rule_holds(parse(rule, NetStateRule()), parse(state, NetState())) is holds


def test_one_holding_exclude_rule_is_enough() -> None:
    source = parse_net("layer { name: 'x' exclude { phase: TRAIN } exclude { stage: 's' } }")
    assert len(filter_net(source, TEST).net.layer) == 1
    assert len(filter_net(source, TRAIN).net.layer) == 0
    assert len(filter_net(source, TEST, stages=["s"]).net.layer) == 0


def test_both_kinds_of_rules() -> None:
    source = parse_net("\nlayer { name: 'x' include { } exclude { } }", "net.prototxt")
    with pytest.raises(SpecError) as error:
        filter_net(source, TRAIN)
    assert str(error.value) == (
        "net.prototxt:2: layer 'x' has both include and exclude rules, expected one kind; remove the other"
    )


def test_the_nets_own_state_keeps_its_stages_only() -> None:
    source = parse_net("state { phase: TEST level: 5 stage: 'a' } layer { name: 'x' include { stage: 'a' } }")
    filtered = filter_net(source, TRAIN, stages=["b"])
    assert filtered.net.state == NetState(phase=TRAIN, level=0, stage=["a", "b"])
    assert len(filtered.net.layer) == 1
    assert source.net.state.level == 5


def test_by_state_the_state_is_taken_as_it_is() -> None:
    source = parse_net("state { stage: 'a' } layer { name: 'x' include { stage: 'a' } }")
    filtered = filter_by_state(source, NetState(level=2))
    assert filtered.net.state == NetState(level=2)
    assert len(filtered.net.layer) == 0
