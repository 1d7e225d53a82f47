"""upgrade-net: `upgrade_net_proto_text IN OUT`, `upgrade_net_proto_binary IN OUT`: nets into the current format."""

from __future__ import annotations

import argparse

from poseidon.cli.command import Command, Flags, Operand, one_of
from poseidon.cli.telling import tool_flags

FORMATS = ("auto", "text", "binary")
_FORMAT_OF = {"upgrade_net_proto_text": "text", "upgrade_net_proto_binary": "binary"}


def declare(flags: Flags) -> None:
    flags.operands(
        Operand("IN", "a net's prototxt, or its weights (.caffemodel)"),
        Operand("OUT", "where to write it in the current format; may be the same file"),
    )
    if flags.prog not in _FORMAT_OF:
        flags.flag("format", type=one_of(FORMATS), default="auto", metavar="HOW", help="text|binary (what IN is)")
    tool_flags(flags)


def run(found: argparse.Namespace) -> int:
    from poseidon.cli.upgrading import source_file, write_upgraded
    from poseidon.tools.upgrade import is_text, upgraded_net

    source = source_file(found)
    kind = _FORMAT_OF.get(found.program) or found.format
    if kind == "auto":
        kind = "text" if is_text(source) else "binary"
    return write_upgraded(found, kind, lambda: upgraded_net(source, binary=kind == "binary"))


COMMAND = Command(declare, run)
