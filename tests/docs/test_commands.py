"""Commands on pages of the docs are run, top to bottom, where the digits are: with a solver that stops soon.

What needs other machines, devices or packages (`--hosts`, `--gpu`, pip, docker, srun, sudo, …) is checked for its flags
only, by tests/test_docs.py. A `console` block shows a command and its output: what was planned for is compared.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from poseidon.cli import main
from poseidon.data.datasets import make_dataset
from tests.cli.test_digits_example import spotted_digits
from tests.test_docs import blocks_of, command_lines

ROOT = Path(__file__).parents[2]
PAGES = ("index.md", "from-pmls.md", "report.md", "schemes.md", "tuning.md", "watching.md")
ELSEWHERE = ("--hosts", "--hostfile", "--gpu")
NUM_ITERATIONS = 25  # so that iterations 10 to 14 are recorded, as in any longer run


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder as a reader has it: examples, and data made; the digits are noise with a spot."""
    folder = tmp_path_factory.mktemp("desk")
    shutil.copytree(
        ROOT / "examples" / "digits", folder / "examples" / "digits", ignore=shutil.ignore_patterns("*_iter_*")
    )
    solver = folder / "examples" / "digits" / "solver.prototxt"
    text = re.sub(r"max_iter: \d+", f"max_iter: {NUM_ITERATIONS}", solver.read_text())
    text = re.sub(r"test_iter: \d+", "test_iter: 1", re.sub(r"snapshot: \d+", "snapshot: 0", text))
    solver.write_text(re.sub(r"display: \d+", "display: 5", text))
    (folder / "mnist_5k.csv").write_text(spotted_digits(50))
    make_dataset("digits", folder / "data", [folder / "mnist_5k.csv"])
    return folder


def runs_here(words: list[str]) -> bool:
    return words[0] == "poseidon" and not any(word.startswith(ELSEWHERE) for word in words)


def adapted(words: list[str]) -> list[str]:
    """The same command on this desk: its data are there already, and its solver stops sooner."""
    if words[:2] == ["poseidon", "data"]:
        return [*words, "--from", "mnist_5k.csv", "--overwrite"]
    return [word.replace("_iter_1500", f"_iter_{NUM_ITERATIONS}") for word in words]


def perform(words: list[str], capsys) -> str:
    """Runs a command of `poseidon` here; returns what it printed, which also goes where `>` points."""
    out_to = words.index(">") if ">" in words else len(words)
    capsys.readouterr()
    code = main(words[1:out_to])
    printed = capsys.readouterr()
    assert code == 0, f"{shlex.join(words)}\n{printed.err[-2000:]}"
    if out_to < len(words):
        Path(words[out_to + 1]).write_text(printed.out)
    return printed.out


@pytest.mark.parametrize("page", PAGES)
def test_a_pages_commands_run(page, desk, monkeypatch, capsys):
    monkeypatch.chdir(desk)
    shutil.rmtree("runs", ignore_errors=True)
    ran = 0
    for block in blocks_of(ROOT / "docs" / page):
        if block.language == "sh":
            for words in command_lines(block.text):
                if runs_here(words):
                    perform(adapted(words), capsys)
                    ran += 1
    assert ran


def test_output_that_is_shown_is_what_comes_out(desk, monkeypatch, capsys):
    monkeypatch.chdir(desk)
    shown = [
        (block.where, *block.text.split("\n", 1))
        for page in sorted((ROOT / "docs").glob("*.md"))
        for block in blocks_of(page)
        if block.language == "console"
    ]
    assert shown
    for where, first, output in shown:
        assert first.startswith("$ poseidon "), where
        printed = perform(shlex.split(first[2:]), capsys)
        # Schemes and times change as the planner gets better; what it planned for, and what it tells, do not.
        assert printed.splitlines()[:2] == output.splitlines()[:2], where
