"""examples/digits and quickstart.sh: that they belong together, and that the net learns."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

from poseidon.data.datasets import make_dataset
from poseidon.solver import Solver, events
from poseidon.spec import read_solver

ROOT = Path(__file__).resolve().parent.parent.parent


def spotted_digits(num_per_kind: int) -> str:
    """Lines of 784 pixels and a label. Each kind is noise with a bright spot in a place of its own, far enough from the
    others that the random shifts of a training crop, up to 4 pixels, leave them apart."""
    chance = random.Random(0)
    lines = []
    for kind in range(10):
        top, left = 5 + 12 * (kind // 5), 3 + 5 * (kind % 5)
        spot = {28 * row + column for row in range(top, top + 4) for column in (left, left + 1)}
        for _ in range(num_per_kind):
            pixels = [chance.randrange(60) + 190 * (i in spot) for i in range(784)]
            lines.append(",".join(map(str, [*pixels, kind])))
    return "\n".join(lines)


def test_the_net_learns(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "examples" / "digits", tmp_path / "examples" / "digits")
    (tmp_path / "mnist_5k.csv").write_text(spotted_digits(50))
    monkeypatch.chdir(tmp_path)
    make_dataset("digits", Path("data"), [tmp_path / "mnist_5k.csv"])
    param = read_solver("examples/digits/solver.prototxt")
    param.test_iter[0], param.max_iter, param.test_interval, param.snapshot = 1, 60, 60, 0
    accuracies: list[float] = []

    def keep(event: events.Event) -> None:
        if isinstance(event, events.TestDone):
            accuracies.append(event.outputs[0].value)

    Solver(param, listeners=[keep]).solve()
    before, after = accuracies
    assert before <= 0.3
    assert after >= 0.9


def test_quickstart_names_the_files_that_training_writes():
    script = (ROOT / "quickstart.sh").read_text()
    param = read_solver(ROOT / "examples" / "digits" / "solver.prototxt")
    assert param.net in script
    assert f"{param.snapshot_prefix}_iter_{param.max_iter}.caffemodel" in script
    assert f"{param.snapshot_prefix}_iter_{param.snapshot}.solverstate" in script
    assert "--solver=examples/digits/solver.prototxt" in script
    assert param.max_iter % param.test_interval == 0  # so that training ends with a test
    cluster = read_solver(ROOT / "examples" / "digits" / "cluster_solver.prototxt")
    assert cluster.net == param.net
    assert f"{cluster.snapshot_prefix}_iter_{cluster.max_iter}.caffemodel" in script
    assert cluster.max_iter % cluster.test_interval == 0


def test_quickstart_says_what_it_takes():
    def start(*words):
        return subprocess.run([ROOT / "quickstart.sh", *words], capture_output=True, text=True, check=False)

    assert "two workers on this host" in start("--help").stdout
    wrong = start("--clutser")
    assert wrong.returncode == 2
    assert "expected --cluster or nothing, got '--clutser'" in wrong.stderr
