"""Which layers of a net are part of it in a given state: phase, level and stages.

A layer with `include` rules is in when at least one of them holds; one with `exclude` rules is out when at least one
holds; a layer without rules is in. A rule holds when everything it sets agrees: the phase, min_level <= level <=
max_level, every `stage` among the net's stages, and no `not_stage` among them.
"""

from __future__ import annotations

from collections.abc import Iterable

from poseidon.errors import SpecError
from poseidon.spec.caffe_pb2 import LayerParameter, NetParameter, NetState, NetStateRule, Phase
from poseidon.spec.source import NetSource


def filter_net(source: NetSource, phase: int, level: int = 0, stages: Iterable[str] = ()) -> NetSource:
    """The net as built for `phase`, `level` and `stages`. Stages that the net's own `state` names stay switched on."""
    state = NetState(phase=Phase.Name(phase), level=level, stage=[*source.net.state.stage, *stages])
    return filter_by_state(source, state)


def filter_by_state(source: NetSource, state: NetState) -> NetSource:
    """The net with `state` for its state, and only the layers that belong to it."""
    kept = [index for index, layer in enumerate(source.net.layer) if _is_included(layer, state, source.place(index))]
    net = NetParameter()
    net.CopyFrom(source.net)
    net.state.CopyFrom(state)
    del net.layer[:]
    net.layer.extend(source.net.layer[index] for index in kept)
    return NetSource(net, source.filename, tuple(source.lines[index] for index in kept))


def _is_included(layer: LayerParameter, state: NetState, place: str) -> bool:
    if layer.include and layer.exclude:
        raise SpecError(
            f"{place}: layer '{layer.name}' has both include and exclude rules, expected one kind; remove the other"
        )
    if layer.include:
        return any(rule_holds(rule, state) for rule in layer.include)
    return not any(rule_holds(rule, state) for rule in layer.exclude)


def rule_holds(rule: NetStateRule, state: NetState) -> bool:
    return (
        (not rule.HasField("phase") or rule.phase == state.phase)
        and (not rule.HasField("min_level") or rule.min_level <= state.level)
        and (not rule.HasField("max_level") or state.level <= rule.max_level)
        and all(stage in state.stage for stage in rule.stage)
        and not any(stage in state.stage for stage in rule.not_stage)
    )
