"""Training killed with SIGKILL, at every disk operation of a snapshot and at random moments, and started again.

What a killed run and its successors leave must be, byte for byte, what an uninterrupted run leaves.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from poseidon.solver import newest_good
from tests.solver.small import net_text, write_data

ROOT = Path(__file__).parents[2]
NUM_OPS = 8  # of a snapshot: three files created, three published, the folder settled twice
NUM_KILLS = 20


class Trainer:
    """The process that runs `tests.solver.trainer`; see there."""

    def __init__(self, data: Path) -> None:
        self._net = net_text(write_data(data), shuffle=True, dropout=0.4)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.solver.trainer"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, folder: Path, settings: str, *, dies_at: int | None = None, how: str = "", killed_after: int = 0):
        """All that the child told. `killed_after`: it is killed from outside once it has told so many things."""
        folder.mkdir(exist_ok=True)
        solver = f'base_lr: 0.05 lr_policy: "fixed" momentum: 0.9 random_seed: 3 snapshot_prefix: "s" {settings}'
        command = {"folder": str(folder), "solver": solver, "net": self._net, "dies_at": dies_at, "how": how}
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        told: list[dict] = []
        for line in self._process.stdout:
            told.append(json.loads(line))
            if "exit" in told[-1]:
                return told
            if killed_after and len(told) > killed_after and facts(told, "pid"):
                os.kill(facts(told, "pid")[0], signal.SIGKILL)
                killed_after = 0
        raise AssertionError(f"the trainer ended by itself: {self._process.wait()}")

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def facts(told: list[dict], name: str) -> list[int]:
    return [fact[name] for fact in told if name in fact]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    trainer = Trainer(tmp_path_factory.mktemp("data"))
    yield trainer
    trainer.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


MOMENTS = [
    *((op, how) for op in range(3) for how in ("before", "torn", "after")),
    *((op, "before") for op in range(3, NUM_OPS)),
    (NUM_OPS - 1, "after"),
]


@pytest.mark.parametrize("form", ["BINARYPROTO", "HDF5"])
def test_killed_at_every_operation_of_a_snapshot(trainer, tmp_path, form):
    settings = f"max_iter: 3 snapshot: 1 snapshot_format: {form}"
    (told,) = [trainer.run(tmp_path / "whole", settings)]
    assert facts(told, "exit") == [0]
    assert facts(told, "op") == list(range(3 * NUM_OPS))
    whole = contents(tmp_path / "whole")
    assert len(whole) == 9
    for op, how in MOMENTS:
        folder = tmp_path / f"{op}{how}"
        told = trainer.run(folder, settings, dies_at=NUM_OPS + op, how=how)  # in the second snapshot
        assert facts(told, "exit") == [-signal.SIGKILL]
        # The second is there once its state has its name, by operation 6.
        survivor = 1 if op <= 6 else 2
        assert newest_good(f"{folder}/s").name.startswith(f"s_iter_{survivor}.")
        told = trainer.run(folder, settings)
        assert facts(told, "exit") == [0]
        assert facts(told, "started") == [survivor]
        assert contents(folder) == whole, f"killed {how} operation {op}"


def test_killed_at_twenty_random_moments(trainer, tmp_path):
    settings = "max_iter: 120 snapshot: 2"
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert facts(trainer.run(whole, settings), "exit") == [0]
    moments = random.Random(20)
    last_written = 0
    for kill in range(NUM_KILLS):
        if kill % 2:  # in the middle of a disk operation
            how = moments.choice(["before", "torn", "after"])
            told = trainer.run(killed, settings, dies_at=moments.randrange(3 * NUM_OPS), how=how)
        else:  # whenever the signal arrives
            told = trainer.run(killed, settings, killed_after=moments.randrange(1, 50))
        assert facts(told, "exit") == [-signal.SIGKILL]
        if facts(told, "started"):
            assert facts(told, "started")[0] >= last_written, "no more is lost than the work since the last snapshot"
        last_written = max([last_written, *facts(told, "written")])
    assert last_written > 2
    told = trainer.run(killed, settings)
    assert facts(told, "exit") == [0]
    assert last_written <= facts(told, "started")[0] < 120
    assert contents(killed) == contents(whole)
