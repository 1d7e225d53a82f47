"""What upgrade-net and upgrade-solver have in common: Caffe's messages, and its exit codes.

0   written, also when there was nothing to upgrade
1   written, but something of the old file was dropped; or the command was used wrongly
2   the file cannot be understood; nothing is written
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from poseidon.cli.telling import telling
from poseidon.cli.terminal import has_display
from poseidon.errors import SpecError, UsageError
from poseidon.spec import write_binary, write_text
from poseidon.tools.upgrade import Upgraded


def write_upgraded(found: argparse.Namespace, kind: str, upgrade: Callable[[], Upgraded]) -> int:
    """Reads with `upgrade`, writes to `found.out` as `kind` (text or binary); returns an exit code."""
    source, target = vars(found)["in"], found.out
    name, place = ("SolverParameter", "upgrade_solver_proto") if "solver" in found.words[0] else _NET
    place = f"{place}_{kind}.cpp"
    with telling(found) as tell:
        try:
            upgraded = upgrade()
        except SpecError as problem:
            tell.say(f"{place}:29", f"Failed to parse input {kind} file as {name}: {problem}", "E")
            return 2
        for problem_text in upgraded.problems:
            tell.say("upgrade_proto.cpp:81", problem_text, "E")
        if upgraded.problems:
            tell.say(f"{place}:38", f"Encountered error(s) while upgrading {_WORD[kind]}; see details above.", "E")
        if not upgraded.changed:
            tell.say(f"{place}:42", f"File already in latest proto format: {source}", "E")
        (write_text if kind == "text" else write_binary)(upgraded.message, target)
        tell.say(f"{place}:49", f"Wrote upgraded {name} {kind} proto to {target}")
    if has_display(found):
        print(f"{target}: written")
    return 1 if upgraded.problems else 0


_NET = ("NetParameter", "upgrade_net_proto")
_WORD = {"text": "prototxt", "binary": "weights"}


def source_file(found: argparse.Namespace) -> str:
    """The file to upgrade, which must be there."""
    path: str = vars(found)["in"]
    if not os.path.isfile(path):
        raise UsageError(f"File not found: {path}; a relative path starts where the command runs")
    return path
