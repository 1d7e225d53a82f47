"""Windows of images in files, and what a net made of them.

    CSV    a header with at least filename, ymin, xmin, ymax, xmax, in any order; a window a line.
           Written: these columns, then class0, class1, …
    HDF5   `filename` (strings, N) and `window` (numbers, N × 4: ymin, xmin, ymax, xmax). Written: the same, and
           `prediction` (N × classes)

A window is in pixels, the first row and column inside it, the last beside it, as in pycaffe's `image[ymin:ymax]`.
"""

from __future__ import annotations

import csv
import io
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from poseidon.errors import DataError
from poseidon.net.weights_hdf5 import H5_ERRORS, hdf5_member, is_hdf5
from poseidon.spec.files import write_atomically

EDGES = ("ymin", "xmin", "ymax", "xmax")
_MAX_WINDOWS = 10_000_000


@dataclass(frozen=True, slots=True)
class WindowTable:
    """Files and their windows, row by row; `where` names a row for people."""

    path: str
    filenames: tuple[str, ...]
    windows: np.ndarray

    def by_file(self) -> dict[str, list[int]]:
        """The rows of each file, files in the order of their first window."""
        found: dict[str, list[int]] = {}
        for row, name in enumerate(self.filenames):
            found.setdefault(name, []).append(row)
        return found


def read_windows(path: str) -> WindowTable:
    """The table in a CSV or HDF5 file, told apart by their contents."""
    if not Path(path).is_file():
        raise DataError(f"{path}: there is no such file; expected windows as .csv or .h5")
    return _read_hdf5(path) if is_hdf5(path) else _read_csv(path)


def _read_csv(path: str) -> WindowTable:
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            header = [name.strip() for name in next(rows, [])]
            missing = [name for name in ("filename", *EDGES) if name not in header]
            if missing:
                raise DataError(f"{path}: has no column {missing[0]!r}, expected filename, {', '.join(EDGES)}")
            columns = [header.index(name) for name in ("filename", *EDGES)]
            filenames, windows = [], []
            for row in rows:
                if row:
                    name, *edges = _cells(row, columns, f"{path}:{rows.line_num}")
                    filenames.append(name)
                    windows.append(_edges(edges, f"{path}:{rows.line_num}"))
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise DataError(f"{path}: cannot be read as CSV: {problem}") from None
    return WindowTable(path, tuple(filenames), np.array(windows, np.int64).reshape(-1, 4))


def _cells(row: Sequence[str], columns: Sequence[int], where: str) -> list[str]:
    if max(columns) >= len(row):
        raise DataError(f"{where}: has {len(row)} columns, expected at least {max(columns) + 1}")
    return [row[column].strip() for column in columns]


def _edges(texts: Sequence[str], where: str) -> list[int]:
    try:
        edges = [float(text) for text in texts]
    except ValueError:
        raise DataError(f"{where}: a window is four numbers, got {', '.join(texts)}") from None
    return _checked(edges, where)


def _checked(edges: Sequence[float], where: str) -> list[int]:
    top, left, bottom, right = edges
    if not (0 <= top < bottom <= 2**31 and 0 <= left < right <= 2**31):
        raise DataError(
            f"{where}: a window has 0 <= ymin < ymax and 0 <= xmin < xmax, got "
            + ", ".join(f"{name} {edge:g}" for name, edge in zip(EDGES, edges, strict=True))
        )
    return [int(edge) for edge in edges]


def _read_hdf5(path: str) -> WindowTable:
    try:
        with h5py.File(path, "r", locking="best-effort") as file:
            names, windows = (_dataset(file, name, path) for name in ("filename", "window"))
            num_windows = names.shape[0] if len(names.shape) == 1 else -1
            if windows.shape != (num_windows, 4) or windows.dtype.kind not in "fiu" or num_windows > _MAX_WINDOWS:
                raise DataError(
                    f"{path}: expected `filename` of N strings and `window` of N x 4 numbers, "
                    f"got {names.shape} and {windows.shape} {windows.dtype}"
                )
            texts = tuple(
                name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in names[()]
            )
            edges = [
                _checked([float(edge) for edge in row], f"{path}: window {index}")
                for index, row in enumerate(np.asarray(windows[()]))
            ]
    except H5_ERRORS as problem:
        raise DataError(f"{path}: damaged HDF5 file: {problem}") from None
    return WindowTable(path, texts, np.array(edges, np.int64).reshape(-1, 4))


def _dataset(file: h5py.File, name: str, path: str) -> h5py.Dataset:
    found = hdf5_member(file, name, path) if name in file else None
    if not isinstance(found, h5py.Dataset) or found.is_virtual or found.external:
        raise DataError(f"{path}: found no dataset `{name}` in it, expected `filename` and `window`")
    return found


def write_scores(table: WindowTable, scores: np.ndarray, path: str) -> None:
    """The windows with a row of scores each; CSV or HDF5, as the name ends."""
    if path.lower().endswith(".csv"):
        _write_csv(table, scores, path)
    else:
        _write_hdf5(table, scores, Path(path))


def _write_csv(table: WindowTable, scores: np.ndarray, path: str) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["filename", *EDGES, *(f"class{index}" for index in range(scores.shape[1]))])
    for name, window, row in zip(table.filenames, table.windows.tolist(), scores, strict=True):
        writer.writerow([name, *window, *(f"{score:.9g}" for score in row)])
    write_atomically(text.getvalue().encode(), path)


def _write_hdf5(table: WindowTable, scores: np.ndarray, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with h5py.File(temporary, "x") as file:
            file.create_dataset("filename", data=list(table.filenames), dtype=h5py.string_dtype())
            file.create_dataset("window", data=table.windows)
            file.create_dataset("prediction", data=scores)
        temporary.replace(path)
    except H5_ERRORS as problem:
        raise DataError(f"{path}: cannot be written: {problem}") from None
    finally:
        temporary.unlink(missing_ok=True)
