"""upgrade-solver: `upgrade_solver_proto_text IN OUT` brings a solver's prototxt to the current format."""

from __future__ import annotations

import argparse

from poseidon.cli.command import Command, Flags, Operand
from poseidon.cli.telling import tool_flags


def declare(flags: Flags) -> None:
    flags.operands(
        Operand("IN", "a solver's prototxt"),
        Operand("OUT", "where to write it in the current format; may be the same file"),
    )
    tool_flags(flags)


def run(found: argparse.Namespace) -> int:
    from poseidon.cli.upgrading import source_file, write_upgraded
    from poseidon.tools.upgrade import upgraded_solver

    source = source_file(found)
    return write_upgraded(found, "text", lambda: upgraded_solver(source))


COMMAND = Command(declare, run)
