"""A small net and solver in files, as a user of the command has them, and the command as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-c", "import sys; from poseidon.cli import {0}; sys.exit({0}())"]

NET = """
name: "tiny"
layer { name: "x" type: "DummyData" top: "x" top: "t" dummy_data_param {
    shape { dim: 4 dim: 3 } shape { dim: 4 } data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }
layer { name: "fc" type: "InnerProduct" bottom: "x" top: "y"
    inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "accuracy" type: "Accuracy" bottom: "y" bottom: "t" top: "accuracy" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "t" top: "loss" }
"""


def write_case(folder: Path, settings: str = "", net: str = NET) -> None:
    """net.prototxt and solver.prototxt; `settings` are added to the solver's."""
    (folder / "net.prototxt").write_text(net)
    (folder / "solver.prototxt").write_text(
        f'net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" random_seed: 1 snapshot_prefix: "snap" {settings}\n'
    )


def command(*words: str, program: str = "caffe_main") -> list[str]:
    """The command line of a process that runs the `caffe` program (or `main`, which is `poseidon`)."""
    return [*COMMAND[:2], COMMAND[2].format(program), *words]


def start(*words: str, folder: Path, program: str = "caffe_main", **options) -> subprocess.Popen:
    """The command as a process of its own, in a folder."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    environment.update(options.pop("env", {}))
    return subprocess.Popen(command(*words, program=program), cwd=folder, env=environment, **options)
