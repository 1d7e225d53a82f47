"""Writing a run folder. Lines are whole when they are written, so that a reader never sees half of one but the last.

`run.json` is replaced in one step. The others are appended to: a metric is flushed at once, events now and then.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from poseidon.errors import RecordError
from poseidon.record.event import Event, Trace
from poseidon.record.metric import Metric
from poseidon.record.run import FORMAT, Facts

FACTS_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"
DIGITS = 7  # of an event's seconds
_BLOCK_BYTES = 1 << 16


def trace_file(rank: int) -> str:
    return f"trace-{rank}.jsonl"


def strict_json(value: Any, **options: Any) -> str:
    """JSON without NaN and infinities: null in their place."""
    return json.dumps(_finite(value), allow_nan=False, ensure_ascii=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value


def write_facts(folder: str | Path, facts: Facts) -> None:
    """Writes `run.json`, in place of one that is there."""
    path = Path(folder) / FACTS_FILE
    beside = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(strict_json({"format": FORMAT, **asdict(facts)}, indent=1) + "\n", encoding="utf-8")
        os.replace(beside, path)
    except OSError as problem:
        raise unwritable(path, problem) from None


def unwritable(path: Path, problem: OSError) -> RecordError:
    return RecordError(
        f"{path}: a run's record cannot be written there: {problem.strerror}; name a folder that can be written to"
    )


class _LinesFile:
    """A file of lines, in a folder that is made if needed."""

    def __init__(self, path: Path, *, anew: bool) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not anew:
                _drop_half_a_line(path)
            self._file: TextIO = path.open("w" if anew else "a", encoding="utf-8")
        except OSError as problem:
            raise unwritable(path, problem) from None

    def write(self, text: str, *, flush: bool) -> None:
        try:
            self._file.write(text)
            if flush:
                self._file.flush()
        except OSError as problem:
            raise unwritable(self._path, problem) from None

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as problem:
            raise unwritable(self._path, problem) from None


def _drop_half_a_line(path: Path) -> None:
    """A run that was cut off, or met a full disk, may have left one: what is appended must begin a line of its own."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(end - _BLOCK_BYTES, 0)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        file.truncate(end)


class MetricsWriter:
    """`metrics.jsonl`; `anew` False: goes on where a run before has ended."""

    def __init__(self, folder: str | Path, *, anew: bool = True) -> None:
        self._lines = _LinesFile(Path(folder) / METRICS_FILE, anew=anew)

    def write(self, metric: Metric) -> None:
        self._lines.write(metric_line(metric), flush=True)

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def metric_line(metric: Metric) -> str:
    entry = {
        "phase": metric.phase,
        "iteration": metric.iteration,
        "seconds": metric.seconds,
        "outputs": dict(metric.outputs),
        "loss": metric.loss,
        "lr": metric.lr,
        "samples_per_second": metric.samples_per_second,
        "iteration_seconds": metric.iteration_seconds,
        "workers": [
            {
                "rank": w.rank,
                "compute": w.compute_s,
                "wait": w.wait_s,
                "sent": w.sent_bytes,
                "received": w.received_bytes,
                "staleness": w.staleness,
            }
            for w in metric.workers
        ],
        "net": metric.net_index,
    }
    return strict_json(entry) + "\n"


class TraceWriter:
    """`trace-<rank>.jsonl`, always anew: `trace` says whose it is; its own events, if any, are written at once.

    Times of events are the rank's own: `trace.offset_s` is added by whoever reads them. Writing an event costs about a
    microsecond: what stays the same from iteration to iteration is encoded once.
    """

    def __init__(self, folder: str | Path, trace: Trace) -> None:
        self._lines = _LinesFile(Path(folder) / trace_file(trace.rank), anew=True)
        self._heads: dict[tuple[str, str], str] = {}
        head = {
            "rank": trace.rank,
            "host": trace.host,
            "offset": trace.offset_s,
            "uncertainty": trace.uncertainty_s,
            "origin": trace.origin,
        }
        self._lines.write(strict_json(head) + "\n", flush=True)
        self.write(trace.events)

    def write(self, events: Iterable[Event]) -> None:
        self.write_rows(
            (e.kind, e.name, e.iteration, e.start_s, e.duration_s, e.num_bytes, e.unit, e.chunk) for e in events
        )

    def write_rows(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Events as tuples of their fields, of which the last may be missing: for who has no time to make objects."""
        line = self._line
        self._lines.write("".join([line(*row) for row in rows]), flush=True)

    def compare(self, at_s: float, offset_s: float, uncertainty_s: float) -> None:
        """Clocks were compared once more, at this time of the rank's own."""
        later = {"offset": offset_s, "uncertainty": uncertainty_s, "t": at_s}
        self._lines.write(strict_json(later) + "\n", flush=True)

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _line(
        self,
        kind: str,
        name: str,
        iteration: int,
        start_s: float,
        duration_s: float | None = None,
        num_bytes: int | None = None,
        unit: int | None = None,
        chunk: int | None = None,
    ) -> str:
        head = self._heads.get((kind, name))
        if head is None:
            head = f'{{"k":{strict_json(kind)},"n":{strict_json(name)},"i":'
            self._heads[kind, name] = head
        line = f'{head}{iteration},"t":{start_s:.7f}'
        if duration_s is not None:
            # From rounded ends: events that end together still do when they are read.
            line += f',"d":{round(start_s + duration_s, DIGITS) - round(start_s, DIGITS):.7f}'
        if num_bytes is not None:
            line += f',"b":{num_bytes}'
        if unit is not None:
            line += f',"u":{unit}'
        if chunk is not None:
            line += f',"c":{chunk}'
        return line + "}\n"
