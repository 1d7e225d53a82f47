"""The Caffe schema, prototxt and binary codecs, upgrades of old formats, rules and splits.

    file -> message -> upgraded to the current format -> filtered by phase, level and stages -> splits inserted

From the first to the last a NetSource is passed on: the net, its file and the line of each layer.
"""

from __future__ import annotations

from poseidon.spec.binary import parse_binary, read_binary, read_weights_proto, serialize, write_binary
from poseidon.spec.blobs import (
    array_to_blob,
    array_to_datum,
    blob_shape,
    blob_to_array,
    datum_to_array,
    has_legacy_shape,
    shape_equals,
)
from poseidon.spec.filter import filter_by_state, filter_net, rule_holds
from poseidon.spec.format import format_message, write_text
from poseidon.spec.names import nearest, nearest_name
from poseidon.spec.source import NetSource, net_source, parse_net, parse_solver, read_net, read_solver
from poseidon.spec.splits import insert_splits
from poseidon.spec.text import parse
from poseidon.spec.upgrade import Upgrade, needs_upgrade, upgrade_net, upgrade_solver

__all__ = [
    "NetSource",
    "Upgrade",
    "array_to_blob",
    "array_to_datum",
    "blob_shape",
    "blob_to_array",
    "datum_to_array",
    "filter_by_state",
    "filter_net",
    "format_message",
    "has_legacy_shape",
    "insert_splits",
    "nearest",
    "nearest_name",
    "needs_upgrade",
    "net_source",
    "parse",
    "parse_binary",
    "parse_net",
    "parse_solver",
    "read_binary",
    "read_net",
    "read_solver",
    "read_weights_proto",
    "rule_holds",
    "serialize",
    "shape_equals",
    "upgrade_net",
    "upgrade_solver",
    "write_binary",
    "write_text",
]
