"""The Caffe schema, prototxt and binary codecs, upgrades of old formats, rules and splits.

    text or binary file -> message -> upgraded to the current format -> filtered by phase, level and stages -> splits inserted

Every step takes and gives a NetSource: the net, its file and the line of each layer.
"""

from __future__ import annotations

from poseidon.spec.filter import filter_by_state, filter_net, rule_holds
from poseidon.spec.format import format_message
from poseidon.spec.names import nearest
from poseidon.spec.source import NetSource, net_source, parse_net, parse_solver, read_net, read_solver
from poseidon.spec.splits import insert_splits
from poseidon.spec.text import parse
from poseidon.spec.upgrade import needs_upgrade, upgrade_net, upgrade_solver

__all__ = [
    "NetSource",
    "filter_by_state",
    "filter_net",
    "format_message",
    "insert_splits",
    "nearest",
    "needs_upgrade",
    "net_source",
    "parse",
    "parse_net",
    "parse_solver",
    "read_net",
    "read_solver",
    "rule_holds",
    "upgrade_net",
    "upgrade_solver",
]
