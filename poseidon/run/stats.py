"""Stats: what every worker did in every clock, written by rank 0 to one file (--stats).

    run.jsonl    one object a line      {"worker": 0, "clock": 1, "compute_s": 0.0213, "blocked_s": 0.0011, …}
    run.yaml     a list of the same     - {worker: 0, clock: 1, compute_s: 0.0213, blocked_s: 0.0011, …}

Workers note their own clocks, and hand them over where they come together anyway: before tests and snapshots, and at
the end. A job that fails leaves the clocks that were handed over before, and all of rank 0's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from poseidon.errors import UsageError
from poseidon.run.meter import ClockFigures
from poseidon.run.options import JSON_LINES
from poseidon.run.roundtable import Roundtable


class Stats:
    """`path` is written by rank 0; a file of that name is replaced."""

    def __init__(self, path: str, table: Roundtable) -> None:
        self._path, self._table = path, table
        self._noted: list[ClockFigures] = []
        if table.rank == 0:
            self._write([], "w")

    def note(self, figures: ClockFigures) -> None:
        self._noted.append(figures)

    def collect(self) -> None:
        """All workers hand over what they have noted. They call it together."""
        by_rank = self._table.collect_texts(json.dumps([asdict(figures) for figures in self._noted]))
        self._noted.clear()
        rows = [{"worker": rank, **found} for rank, text in enumerate(by_rank) for found in json.loads(text)]
        if self._table.rank == 0:
            self._write(sorted(rows, key=lambda row: (row["clock"], row["worker"])), "a")

    def close(self) -> None:
        """When nobody comes together any more: rank 0's own is better than nothing."""
        if self._table.rank == 0 and self._noted:
            self._write([{"worker": 0, **asdict(figures)} for figures in self._noted], "a")
            self._noted.clear()

    def _write(self, rows: Iterable[dict[str, Any]], mode: str) -> None:
        line_of = _json_line if Path(self._path).suffix.lower() in JSON_LINES else _yaml_line
        try:
            with open(self._path, mode, encoding="utf-8") as file:
                file.writelines(line_of(row) for row in rows)
        except OSError as problem:
            raise UsageError(f"--stats: cannot write {self._path}: {problem.strerror or problem}") from problem


def _rounded(row: dict[str, Any]) -> Sequence[tuple[str, Any]]:
    """Seconds to the microsecond: more digits would only be noise."""
    return [(name, round(value, 6) if isinstance(value, float) else value) for name, value in row.items()]


def _json_line(row: dict[str, Any]) -> str:
    return json.dumps(dict(_rounded(row))) + "\n"


def _yaml_line(row: dict[str, Any]) -> str:
    return "- {" + ", ".join(f"{name}: {_yaml_number(value)}" for name, value in _rounded(row)) + "}\n"


def _yaml_number(value: float) -> str:
    """Plain digits: YAML 1.1 takes 1e-06 for text."""
    return f"{value:.6f}" if isinstance(value, float) else str(value)
