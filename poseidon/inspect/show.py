"""Contents and differences for people, as tables, and for programs, as JSON values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from poseidon.inspect.contents import Array, Contents
from poseidon.inspect.difference import Difference, Verdict
from poseidon.inspect.statistics import MAX_BYTES, Statistics, statistics_of
from poseidon.net.layer import text_of

_PART_HEADINGS = (
    "layer", "type", "reads -> gives", "array", "shape", "dtype", "size", "min", "max", "mean", "std", "zeros",
)  # fmt: skip
_RECORD_HEADINGS = ("record", "label", "shape", "dtype", "size", "contents")
_DIFFERENCE_HEADINGS = ("layer", "array", "verdict", "largest difference", "relative", "what")
_NUMBERS = frozenset({"label", "size", "min", "max", "mean", "std", "zeros", "largest difference", "relative"})


def bytes_text(num_bytes: int) -> str:
    """A size for people: 512 B, 3.2 MB."""
    amount, units = float(num_bytes), ["B", "kB", "MB", "GB", "TB"]
    while amount >= 1000 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{amount:.0f} {units[0]}" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def statistics_if_read(array: Array, *, brief: bool) -> Statistics | None:
    if brief or array.read is None or array.num_bytes > MAX_BYTES:
        return None
    return statistics_of(array.read())


# -- tables ---------------------------------------------------------------------------------------------------------
def print_contents(contents: Contents, console: Console, *, brief: bool) -> None:
    console.print(f"{contents.path}: {contents.kind}, {bytes_text(contents.num_bytes)}")
    for name, value in contents.facts:
        console.print(f"  {name}: {value:,}" if isinstance(value, int) else f"  {name}: {value}")
    if contents.parts:
        console.print(_parts_table(contents, brief=brief))
    if contents.records:
        console.print(_records_table(contents))


def _parts_table(contents: Contents, *, brief: bool) -> Table:
    rows = []
    for part in contents.parts:
        first = [part.name, part.kind, part.flow]
        for position, array in enumerate(part.arrays):
            cells = _statistics_cells(statistics_if_read(array, brief=brief))
            head = first if position == 0 else [""] * 3
            rows.append([*head, array.name, text_of(array.shape), array.dtype, bytes_text(array.num_bytes), *cells])
        if not part.arrays:
            rows.append([*first, *[""] * 9])
    return _table(_PART_HEADINGS, rows)


def _statistics_cells(found: Statistics | None) -> list[str]:
    if found is None:
        return [""] * 5
    cells = [_number(value) for value in (found.least, found.largest, found.mean, found.deviation)]
    zeros = f"{100 * found.zeros:.0f}%"
    return [*cells, f"{zeros}, {found.not_finite} not finite" if found.not_finite else zeros]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _records_table(contents: Contents) -> Table:
    rows = []
    for record in contents.records:
        label = "" if record.label is None else f"{record.label:g}"
        shape = text_of(record.shape) if record.dtype else ""
        rows.append([record.key, label, shape, record.dtype, bytes_text(record.num_bytes), record.note])
    return _table(_RECORD_HEADINGS, rows)


def print_differences(differences: Sequence[Difference], console: Console) -> None:
    """Only what differs, then how much is the same."""
    shown = [entry for entry in differences if entry.verdict is not Verdict.SAME]
    rows = [
        [
            entry.part,
            entry.array,
            entry.verdict.value,
            "" if entry.largest is None else _number(entry.largest),
            "" if entry.relative is None else _number(entry.relative),
            entry.note,
        ]
        for entry in shown
    ]
    if rows:
        console.print(_table(_DIFFERENCE_HEADINGS, rows))
    console.print(f"{len(differences) - len(shown)} of {len(differences)} the same" if shown else "no difference")


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table of the columns that have something in them; numbers to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    used = [column for column in range(len(headings)) if any(row[column] for row in rows)]
    for column in used:
        is_number = headings[column] in _NUMBERS
        table.add_column(headings[column], no_wrap=True, justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*[row[column] for column in used])
    return table


# -- JSON -----------------------------------------------------------------------------------------------------------
def contents_value(contents: Contents, *, brief: bool) -> dict[str, Any]:
    return {
        "file": contents.path,
        "kind": contents.kind,
        "bytes": contents.num_bytes,
        "facts": [{"name": name, "value": _plain(value)} for name, value in contents.facts],
        "layers": [
            {
                "name": part.name,
                "type": part.kind,
                "flow": part.flow,
                "arrays": [_array_value(array, brief=brief) for array in part.arrays],
            }
            for part in contents.parts
        ],
        "records": [
            {
                "key": record.key,
                "label": _plain(record.label),
                "shape": list(record.shape),
                "dtype": record.dtype,
                "bytes": record.num_bytes,
                "note": record.note,
            }
            for record in contents.records
        ],
    }


def _array_value(array: Array, *, brief: bool) -> dict[str, Any]:
    value: dict[str, Any] = {
        "name": array.name,
        "shape": list(array.shape),
        "dtype": array.dtype,
        "bytes": array.num_bytes,
    }
    found = statistics_if_read(array, brief=brief)
    if found is not None:
        value["statistics"] = {
            "min": found.least,
            "max": found.largest,
            "mean": found.mean,
            "std": found.deviation,
            "zeros": found.zeros,
            "not_finite": found.not_finite,
        }
    return value


def differences_value(differences: Sequence[Difference]) -> list[dict[str, Any]]:
    return [
        {
            "layer": entry.part,
            "array": entry.array,
            "verdict": entry.verdict.value,
            "largest": _plain(entry.largest),
            "relative": _plain(entry.relative),
            "note": entry.note,
        }
        for entry in differences
    ]


def _plain(value: str | float | None) -> str | float | None:
    """JSON has no infinity and no NaN."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
