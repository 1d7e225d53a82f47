"""A small net and solver in files, as a user of the command has them, and the command as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_S = 240

NET = """
name: "tiny"
layer { name: "x" type: "DummyData" top: "x" top: "t" dummy_data_param {
    shape { dim: 4 dim: 3 } shape { dim: 4 }
    data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }
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


class Running:
    """The command as a process of its own, in a folder; its log is read line by line.

    `program`: caffe_main, or main for `poseidon`. A process that hangs is killed, which ends its log.
    """

    def __init__(self, folder: Path, *words: str, program: str = "caffe_main", **options) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **options.pop("env", {})}
        script = f"import sys; from poseidon.cli import {program}; sys.exit({program}())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *words], cwd=folder, env=environment, text=True, **options
        )
        self._watchdog = threading.Timer(MOST_S, self.process.kill)

    def __enter__(self) -> Running:
        self._watchdog.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watchdog.cancel()
        self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()

    def read_until(self, words: str) -> str:
        """The log up to and with the first line that holds these words."""
        read = []
        for line in self.process.stderr:
            read.append(line)
            if words in line:
                return "".join(read)
        raise AssertionError(f"ended without {words!r}:\n{''.join(read)}")

    def read_to_end(self) -> str:
        return self.process.stderr.read()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
