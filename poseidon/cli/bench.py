"""bench: `poseidon bench [--quick]` runs the benchmarks of Poseidon's source tree, as ratios, beside the last run."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import poseidon
from poseidon.cli.command import Command, Flags
from poseidon.errors import UsageError


def declare(flags: Flags) -> None:
    flags.switch("quick", help="few subjects and turns: meant to take ten minutes on two cores")
    flags.flag("sections", default="", metavar="LIST", help="some only, separated by commas")
    flags.flag("caffe", default="", metavar="FILE", help="BVLC Caffe's program, to be timed beside ours")
    flags.flag("against", default="", metavar="FILE", help="compare with this record, not with the last one")
    flags.switch("norecord", help="keep no record of this run")
    flags.switch("accept", help="what fell is meant to: it is the new measure")
    flags.flag("json", default="", metavar="FILE", help="also write the record here")


def run(found: argparse.Namespace) -> int:
    root = source_tree()
    for name in ("caffe", "against"):
        path = getattr(found, name)
        if path and not Path(path).is_file():
            raise UsageError(f"--{name}={path}: no such file")
    command = [sys.executable, "-m", "bench.suite"]
    command += [f"--{name}" for name in ("quick", "norecord", "accept") if getattr(found, name)]
    command += [f"--sections={found.sections}"] if found.sections else []
    command += [
        f"--{name}={Path(getattr(found, name)).resolve()}"
        for name in ("caffe", "against", "json")
        if getattr(found, name)
    ]
    return subprocess.run(command, cwd=root, check=False).returncode


def source_tree() -> Path:
    """Where bench/ is: beside the package, or where the command runs. It is not installed with the package."""
    for folder in (Path(poseidon.__file__).resolve().parent.parent, Path.cwd()):
        if (folder / "bench" / "suite.py").is_file():
            return folder
    raise UsageError(
        "the benchmarks are in Poseidon's source tree, not in the package: run `poseidon bench` in a clone of it"
    )


COMMAND = Command(declare, run)
