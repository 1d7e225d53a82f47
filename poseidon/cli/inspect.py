"""inspect: `poseidon inspect FILE` tells what is in a file; `poseidon inspect --diff A B` compares two, layer by layer.

Files are recognised by what is in them: prototxt, caffemodel, solverstate, mean, LMDB, LevelDB, HDF5, safetensors and
ONNX. With --diff the exit code is 1 if the two differ.
"""

from __future__ import annotations

import argparse
import json
import sys

from poseidon.cli.command import Command, Flags, whole_number
from poseidon.cli.terminal import busy
from poseidon.errors import UsageError


def declare(flags: Flags) -> None:
    flags.add_argument("files", nargs="*", metavar="FILE", help="what to look into; two with --diff")
    flags.flag("diff", action="store_true", help="compare two files, layer by layer")
    flags.flag("json", action="store_true", help="JSON instead of a table")
    flags.flag("brief", action="store_true", help="no statistics: names, shapes and sizes only")
    flags.flag("records", type=whole_number, default=5, metavar="N", help="how many records of a database to show (5)")


def run(found: argparse.Namespace) -> int:
    wanted = 2 if found.diff else 1
    if len(found.files) != wanted:
        raise UsageError(f"expected {wanted} file(s), got {len(found.files)}: poseidon inspect FILE, or --diff A B")
    if found.records < 0:
        raise UsageError(f"--records: expected at least 0, got {found.records}")
    return _compare(found) if found.diff else _show(found)


def _show(found: argparse.Namespace) -> int:
    from poseidon.inspect import open_contents
    from poseidon.inspect.show import contents_value, print_contents

    with open_contents(found.files[0], found.records) as contents:
        if found.json:
            print(json.dumps(contents_value(contents, brief=found.brief), indent=1, allow_nan=False))
        else:
            print_contents(contents, _console(), brief=found.brief)
    return 0


def _compare(found: argparse.Namespace) -> int:
    from poseidon.inspect import compare, open_contents
    from poseidon.inspect.difference import Verdict
    from poseidon.inspect.show import differences_value, print_differences

    with (
        busy("comparing"),
        open_contents(found.files[0], 0) as first,
        open_contents(found.files[1], 0) as second,
    ):
        differences = compare(first, second)
    if found.json:
        print(json.dumps(differences_value(differences), indent=1, allow_nan=False))
    else:
        print_differences(differences, _console())
    return int(any(entry.verdict is not Verdict.SAME for entry in differences))


def _console():  # type: ignore[no-untyped-def]
    from rich.console import Console

    # As wide as the tables need: a terminal wraps, a pipe wants whole lines.
    return Console(file=sys.stdout, highlight=False, markup=False, soft_wrap=True, width=10_000)


COMMAND = Command(declare, run)
