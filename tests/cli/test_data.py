"""`poseidon data`: what it prints, and what it answers to mistakes."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from poseidon.cli import main
from tests.data.originals import cifar_files, idx_files, some_images, write_files


@pytest.fixture
def mnist(tmp_path) -> Path:
    files = idx_files(some_images(12, 784, 1), some_images(5, 784, 2), 28, 28)
    return write_files(tmp_path / "original", files, packed=True)


def num_records(path: Path) -> int:
    with lmdb.open(str(path), readonly=True, lock=False) as environment:
        return environment.stat()["entries"]


@pytest.mark.parametrize("spelling", ["--from {}", "--from={}", "-from {}", "-from={}"])
def test_from_a_folder(tmp_path, mnist, capsys, spelling):
    folder = tmp_path / "data"
    assert main(["data", "mnist", str(folder), *spelling.format(mnist).split()]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"mnist ({mnist}): 12 images to train with, 5 to test, 1 x 28 x 28",
        f"  {folder}/mnist_train_lmdb",
        f"  {folder}/mnist_test_lmdb",
    ]
    assert num_records(folder / "mnist_train_lmdb") == 12
    assert num_records(folder / "mnist_test_lmdb") == 5


def test_from_files(tmp_path, mnist):
    files = sorted(map(str, mnist.iterdir()))
    assert main(["data", "mnist", str(tmp_path / "data"), "--from", *files[:2], "--from", *files[2:]]) == 0
    assert num_records(tmp_path / "data" / "mnist_train_lmdb") == 12


def test_names_are_those_the_models_read(tmp_path, mnist, monkeypatch):
    models = Path(__file__).resolve().parent.parent.parent / "models"
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "cifar", cifar_files([some_images(2, 3072, seed) for seed in range(6)]))
    assert main(["data", "mnist", "data", "--from", str(mnist)]) == 0
    assert main(["data", "cifar10", "data", "--from", "cifar"]) == 0
    for model in ("lenet", "cifar10_quick"):
        words = (models / model / "train_val.prototxt").read_text().replace('"', " ").split()
        named = {word for word in words if word.startswith("data/")}
        assert named
        assert all((tmp_path / path).exists() for path in named)


def test_again(tmp_path, mnist, capsys):
    words = ["data", "mnist", str(tmp_path / "data"), "--from", str(mnist)]
    assert main(words) == 0
    assert main(words) == 1
    assert capsys.readouterr().err == (
        f"poseidon: error: {tmp_path}/data/mnist_train_lmdb: exists already; give --overwrite to make it anew, "
        f"or another folder\n"
    )
    assert main([*words, "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "say which data set, and the folder to make it in"),
        (["mnist"], "say which data set, and the folder to make it in"),
        (["mnist", "--from", "somewhere", "data"], "before --from: `poseidon data mnist data`"),
        (["minst", "data"], "unknown data set 'minst'"),
        (["mnist", "data", "--form", "x"], "did you mean"),
        (["mnist", "data", "--from"], "expected at least one argument"),
        (["mnist", "data", "--from", "/does/not/exist"], "/does/not/exist: no such file or folder"),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, capsys, words, expected):
    monkeypatch.chdir(tmp_path)
    assert main(["data", *words]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert expected in printed.err
    assert printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_bars_on_a_terminal(tmp_path, mnist, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["data", "mnist", str(tmp_path / "data"), "--from", str(mnist)]) == 0
    shown = capsys.readouterr().err
    assert "write mnist_train_lmdb" in shown
    assert "write mnist_test_lmdb" in shown
    assert "100%" in shown
