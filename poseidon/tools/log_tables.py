"""The figures of a training log as tables in files named after it.

    LOG.train.csv, LOG.test.csv   as Caffe's parse_log.py writes them
    LOG.train, LOG.test           as its older parse_log.sh does: columns apart by spaces, `#` in front of their names

A table without rows is not written.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence

from poseidon.errors import DataError
from poseidon.log_line import number
from poseidon.spec.files import write_atomically
from poseidon.tools.training_log import Row, TrainingLog


def write_csv_files(log: TrainingLog, folder: str, delimiter: str = ",") -> list[str]:
    """Writes the CSV files into a folder; returns their paths."""
    tables = {"train": log.train, "test": log.test}
    texts = {f"{kind}.csv": csv_text(rows, delimiter) for kind, rows in tables.items() if rows}
    return _write(log, folder, texts)


def write_tables(log: TrainingLog, folder: str) -> list[str]:
    """Writes the plain tables into a folder; returns their paths."""
    tables: dict[str, str] = {}
    if log.losses:
        losses = [(point.iteration, point.seconds, point.loss, point.rate) for point in log.losses]
        tables["train"] = _aligned("#Iters Seconds TrainingLoss LearningRate", losses)
    if log.scores:
        scores = [(point.iteration, point.seconds, point.accuracy, point.loss) for point in log.scores]
        tables["test"] = _aligned("#Iters Seconds TestAccuracy TestLoss", scores)
    return _write(log, folder, tables)


def csv_text(rows: Sequence[Row], delimiter: str = ",") -> str:
    """Rows as CSV; columns in the order in which they appear first."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _aligned(header: str, rows: Sequence[tuple[int, float, float | None, float | None]]) -> str:
    cells = [
        [str(iteration), f"{seconds:f}", *(number(value) for value in values if value is not None)]
        for iteration, seconds, *values in rows
    ]
    widths = [max(len(row[column]) for row in cells if column < len(row)) for column in range(max(map(len, cells)))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in cells]
    return "\n".join([header, *lines]) + "\n"


def _write(log: TrainingLog, folder: str, texts: dict[str, str]) -> list[str]:
    if not os.path.isdir(folder):
        raise DataError(f"{folder}: there is no such folder; make it first")
    paths = []
    for ending, text in texts.items():
        paths.append(os.path.join(folder, f"{os.path.basename(log.path)}.{ending}"))
        write_atomically(text.encode(), paths[-1])
    return paths
