"""Commands on pages of the docs are run, top to bottom, where the digits are: with solvers that stop soon, on two
workers where the page has more. What is not run stands in LEFT_OUT, with the reason; a command that is neither fails.

A `console` block shows a command and its output: what was planned for is compared.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from poseidon.cli import caffe_main, main
from poseidon.data.datasets import make_dataset
from tests.cli.test_digits_example import spotted_digits
from tests.test_docs import Block, blocks_of, command_lines

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NUM_ITERATIONS = 25  # so that iterations 10 to 14 are recorded, as in any longer run
# What a command begins with, or has in it: why it is not run here.
LEFT_OUT = {
    r"--(hosts|hostfile)\b": "needs other hosts; tests/run and tests/faults have emulated ones",
    r"--gpu=|^poseidon device-query$": "needs a GPU",
    r"^(torchrun|mpirun|mpiexec|srun) ": "a launcher that is not ours; tests/run starts workers with what they set",
    r"^(docker|module) ": "needs other programs",
    r"pip' install|pip install|^python3 -m venv|^source |^export ": "installs, or changes the shell",
    r"^\./quickstart\.sh$": "tests/docs/test_quickstart.py runs it, with --full",
    r"^\./test\.sh$": "is this",
    r"^(sudo )?python -m bench\.|^poseidon bench": "measures, for minutes or hours",
    r"^poseidon data (fashion-)?mnist": "downloads; tests/data/test_datasets.py has the files",
    r"^poseidon (status|kill)$": "asks about jobs of this user; tests/faults/test_launch.py has some",
    r"--metrics-port=9400|^curl ": "a port that may be taken here; docs/report.md has one that is free",
    r"bvlc_alexnet\.caffemodel|VGG_VOC0712|^poseidon inspect (train_lmdb|model\.onnx|--diff)|[= ]lenet(_iter_500)?\.": (
        "files of the reader's; tests/inspect and tests/solver have small ones"
    ),
}
# Pages of which a test of its own runs some commands: those that begin so.
ELSEWHERE = {
    "from-caffe.md": ("(?!caffe )", "tests/cli/test_from_caffe.py"),
    "plugins.md": ("poseidon time ", "tests/net/test_plugins.py"),
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder as a reader has it: examples, models, a solver, and data made; the digits are noise with a spot."""
    folder = tmp_path_factory.mktemp("desk")
    ignore = shutil.ignore_patterns("*_iter_*")
    shutil.copytree(ROOT / "examples" / "digits", folder / "examples" / "digits", ignore=ignore)
    shutil.copytree(ROOT / "models", folder / "models", ignore=ignore)
    for solver in (folder / "examples" / "digits", folder / "models" / "lenet"):
        _shorten(solver / "solver.prototxt")
    shutil.copy(folder / "examples" / "digits" / "solver.prototxt", folder)
    (folder / "mnist_5k.csv").write_text(spotted_digits(50))
    make_dataset("digits", folder / "data", [folder / "mnist_5k.csv"])
    for part in ("train", "test"):
        (folder / "data" / f"mnist_{part}_lmdb").symlink_to(f"digits_{part}_lmdb")
    return folder


def _shorten(solver: Path) -> None:
    text = re.sub(r"max_iter: \d+", f"max_iter: {NUM_ITERATIONS}", solver.read_text())
    text = re.sub(r"test_iter: \d+", "test_iter: 1", re.sub(r"snapshot: \d+", "snapshot: 0", text))
    solver.write_text(re.sub(r"display: \d+", "display: 5", text))


def reason_left_out(page: Path, words: list[str]) -> str | None:
    text = " ".join(words)
    beginning, test = ELSEWHERE.get(page.name, (None, ""))
    if beginning is not None and re.match(beginning, text):
        return test
    return next((reason for pattern, reason in LEFT_OUT.items() if re.search(pattern, text)), None)


def adapted(words: list[str]) -> list[str]:
    """The same command on this desk: its data are there already, its solver stops sooner, workers are two."""
    if words[:2] == ["poseidon", "data"]:
        return [*words, "--from", "mnist_5k.csv", "--overwrite"]
    text = shlex.join(words)
    if words[1] == "train":
        text = re.sub(r"--workers([= ])4", r"--workers\g<1>2", text)
    if words[1] == "test":
        text = re.sub(r" --iterations=\d+|$", " --iterations=1", text, count=1)
    text = re.sub(r"_iter_\d+", f"_iter_{NUM_ITERATIONS}", text)
    return shlex.split(text.replace("/tmp/", "made/"))


def perform(words: list[str], capsys) -> str:
    """Runs a command here; returns what it printed, which also goes where `>` points."""
    out_to = words.index(">") if ">" in words else len(words)
    capsys.readouterr()
    code = (main if words[0] == "poseidon" else caffe_main)(words[1:out_to])
    printed = capsys.readouterr()
    assert code == 0, f"{shlex.join(words)}\n{printed.err[-2000:]}"
    if out_to < len(words):
        Path(words[out_to + 1]).write_text(printed.out)
    return printed.out


def commands_of(page: Path) -> list[tuple[Block, list[str]]]:
    return [(block, words) for block in blocks_of(page) if block.is_shell for words in command_lines(block.text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_pages_commands_run(page, desk, monkeypatch, capsys):
    monkeypatch.chdir(desk)
    for folder in ("runs", "made"):
        shutil.rmtree(folder, ignore_errors=True)
    Path("made").mkdir()
    for block in blocks_of(page):
        if block.language == "json":  # a file that the next command reads
            Path("cluster.json").write_text(block.text)
        for words in command_lines(block.text) if block.is_shell else ():
            if reason_left_out(page, words) is None:
                assert words[0] in ("poseidon", "caffe"), f"{block.where}: {shlex.join(words)}: run it, or say why not"
                perform(adapted(words), capsys)


def test_every_reason_is_needed():
    commands = [" ".join(words) for page in PAGES for _, words in commands_of(page)]
    unneeded = [pattern for pattern in LEFT_OUT if not any(re.search(pattern, text) for text in commands)]
    assert unneeded == []
    assert all((ROOT / test).exists() and (ROOT / "docs" / page).exists() for page, (_, test) in ELSEWHERE.items())


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
