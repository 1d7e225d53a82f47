"""Reading a run folder, as the report, the timeline and scripts do.

    run = read("runs/lenet")
    run.facts.outcome, run.training[-1].loss, run.traces[0].events
    read("runs/lenet", iterations=range(100, 110))      of the traces only the events of these

Nothing in a folder is trusted: what is missing or of another type is a RecordError that names file and line. Two things
are normal and are no errors: a run that still goes on, whose last lines may not be whole yet; and one that was started
again from a snapshot, whose metrics then go back to an earlier iteration: the later ones count.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from poseidon.errors import RecordError
from poseidon.record.event import KINDS, Event, Trace
from poseidon.record.metric import PHASES, Metric, WorkerFigures
from poseidon.record.run import FORMAT, KINDS_OF_RUN, Facts, Run
from poseidon.record.writing import DIGITS, FACTS_FILE, METRICS_FILE

T = TypeVar("T")
_ITERATION = re.compile(r'"i":(\d+)[,}]')


def read(folder: str | Path, iterations: range | None = None) -> Run:
    """All that a run has left in its folder; of its events those of these iterations (None: all), line by line, so that
    no more than that is ever in memory."""
    folder = Path(folder)
    if not (folder / FACTS_FILE).is_file():
        raise RecordError(
            f"{folder}: expected the folder of a run, with a {FACTS_FILE} in it, found none; `poseidon train --record "
            f"{folder} …` makes one"
        )
    return Run(read_facts(folder), tuple(_metrics(folder / METRICS_FILE)), tuple(_traces(folder, iterations)))


# -- run.json ---------------------------------------------------------------------------------------------------------
def read_facts(folder: str | Path) -> Facts:
    """What stands in `run.json`."""
    path = Path(folder) / FACTS_FILE
    fields = _Fields(_parsed(path, _text(path), None), str(path))
    found = fields.text("format")
    if found != FORMAT:
        raise RecordError(
            f"{path}: expected the format {FORMAT!r}, got {found!r}; it is of another version of poseidon"
        )
    kind = fields.text("kind")
    if kind not in KINDS_OF_RUN:
        raise RecordError(f"{path}: kind: expected one of {', '.join(KINDS_OF_RUN)}, got {kind!r}")
    configuration = fields.mapping("configuration")
    return Facts(
        kind=kind,
        command=tuple(str(word) for word in fields.entries("command")),
        started=fields.number("started"),
        finished=fields.number_or_none("finished"),
        outcome=fields.text_or_none("outcome"),
        configuration={name: str(value) for name, value in configuration.items()},
        net=fields.text("net"),
        cluster=fields.mapping("cluster"),
        plan=None if fields.get("plan") is None else fields.mapping("plan"),
        shapes={} if not fields.get("shapes") else _shapes(_Fields(fields.mapping("shapes"), f"{path}: shapes")),
    )


def _shapes(fields: _Fields) -> dict[str, dict[str, tuple[int, ...]]]:
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for kind in ("blobs", "params"):
        found[kind] = {}
        for name, extents in fields.mapping(kind).items():
            if not isinstance(extents, list) or any(type(extent) is not int or extent < 0 for extent in extents):
                raise RecordError(
                    f"{fields.where}: {kind}: {name}: expected a list of extents, got {_short(extents)}; "
                    "the folder is damaged"
                )
            found[kind][name] = tuple(extents)
    return found


# -- metrics.jsonl ----------------------------------------------------------------------------------------------------
def _metrics(path: Path) -> list[Metric]:
    found: list[Metric] = []
    for where, entry in _lines(path):
        metric = _metric(_Fields(entry, where))
        # A restart does iterations again: what it says replaces what was said of them before.
        before = next((place for place in reversed(range(len(found))) if found[place].iteration < metric.iteration), -1)
        others = [old for old in found[before + 1 :] if old.iteration == metric.iteration and not _is_same(old, metric)]
        found[before + 1 :] = [*others, metric]
    return found


def _is_same(one: Metric, other: Metric) -> bool:
    return (one.phase, one.net_index) == (other.phase, other.net_index)


def _metric(fields: _Fields) -> Metric:
    phase = fields.text("phase")
    if phase not in PHASES:
        raise RecordError(f"{fields.where}: phase: expected one of {', '.join(PHASES)}, got {phase!r}")
    outputs = fields.mapping("outputs")
    return Metric(
        phase=phase,
        iteration=fields.count("iteration"),
        seconds=fields.number("seconds"),
        outputs={name: _Fields(outputs, f"{fields.where}: outputs").number_or_none(name) for name in outputs},
        loss=fields.number_or_none("loss"),
        lr=fields.number_or_none("lr"),
        samples_per_second=fields.number_or_none("samples_per_second"),
        iteration_seconds=fields.number_or_none("iteration_seconds"),
        workers=tuple(_worker(_Fields(w, f"{fields.where}: workers")) for w in fields.entries("workers", needed=False)),
        net_index=fields.count("net") if fields.get("net") is not None else 0,
    )


def _worker(fields: _Fields) -> WorkerFigures:
    return WorkerFigures(
        rank=fields.count("rank"),
        compute_s=fields.number("compute"),
        wait_s=fields.number("wait"),
        sent_bytes=fields.number("sent"),
        received_bytes=fields.number("received"),
        staleness=fields.number_or_none("staleness") or 0.0,
    )


# -- trace-<rank>.jsonl -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Comparison:
    """At a time of the rank's own, so many seconds were to be added to it."""

    at_s: float
    offset_s: float


@dataclass(frozen=True, slots=True)
class Traced:
    """What the traces of a folder hold: iterations that every rank has recorded to the end, and events in all."""

    iterations: tuple[int, ...]
    num_events: int

    def latest(self, most: int, most_events: int) -> range:
        """The last iterations: so many, or fewer if they have too many events, but one at least."""
        if not self.iterations:
            return range(0)
        each = max(self.num_events / len(self.iterations), 1.0)
        count = max(1, min(most, int(most_events / each)))
        return range(self.iterations[-count:][0], self.iterations[-1] + 1)


def traced(folder: str | Path) -> Traced:
    """A quick look, at which nothing is checked and no event is kept."""
    found: list[set[int]] = []
    num_events = 0
    for path in Path(folder).glob("trace-*.jsonl"):
        own: set[int] = set()
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                for line in file:
                    num_events += 1
                    if '"k":"iteration"' in line and (iteration := _iteration_in(line)) is not None:
                        own.add(iteration)
        except OSError as problem:
            raise RecordError(f"{path}: cannot be read: {problem.strerror}") from None
        found.append(own)
    return Traced(tuple(sorted(set.intersection(*found))) if found else (), num_events)


def _iteration_in(line: str) -> int | None:
    """The iteration of an event's line without reading the rest; None where it does not stand as we write it. (No name
    can look like it: inside of one a quote has a backslash before it.)"""
    match = _ITERATION.search(line)
    return None if match is None else int(match[1])


def _traces(folder: Path, iterations: range | None) -> list[Trace]:
    traces = [trace for path in folder.glob("trace-*.jsonl") if (trace := _trace(path, iterations)) is not None]
    ranks = [trace.rank for trace in traces]
    if len(set(ranks)) < len(ranks):
        twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
        raise RecordError(
            f"{folder}: expected one trace of each rank, got several of rank {twice[0]}; remove the old one"
        )
    return sorted(traces, key=lambda trace: trace.rank)


def _trace(path: Path, iterations: range | None) -> Trace | None:
    """None if nothing whole stands in it yet."""

    def is_wanted(line: str) -> bool:
        return iterations is None or (found := _iteration_in(line)) is None or found in iterations

    lines = _lines(path, is_wanted)
    first = next(lines, None)
    if first is None:
        return None
    head = _Fields(first[1], first[0])
    offset_s, uncertainty_s = head.number("offset"), head.number("uncertainty")
    comparisons, events = [_Comparison(0.0, offset_s)], []
    for where, entry in lines:
        fields = _Fields(entry, where)
        if "offset" in entry:
            comparisons.append(_Comparison(fields.number("t"), fields.number("offset")))
            uncertainty_s = max(uncertainty_s, fields.number("uncertainty"))
        else:
            event = _event(fields)
            if iterations is None or event.iteration in iterations:
                events.append(event)
    aligned = [_aligned(event, comparisons) for event in events]
    return Trace(
        rank=head.count("rank"),
        host=head.text("host"),
        offset_s=offset_s,
        uncertainty_s=uncertainty_s,
        origin=head.number("origin"),
        events=tuple(sorted(aligned, key=lambda event: event.start_s)),
    )


def _event(fields: _Fields) -> Event:
    kind = fields.text("k")
    if kind not in KINDS:
        raise RecordError(f"{fields.where}: k: expected one of {', '.join(KINDS)}, got {kind!r}")
    duration_s = fields.number_or_none("d")
    if duration_s is not None and duration_s < 0:
        raise RecordError(f"{fields.where}: d: expected a duration of 0 or more seconds, got {duration_s}")
    return Event(
        kind=kind,
        name=fields.text("n"),
        iteration=fields.count("i"),
        start_s=fields.number("t"),
        duration_s=duration_s,
        num_bytes=fields.count_or_none("b"),
        unit=fields.count_or_none("u"),
        chunk=fields.count_or_none("c"),
    )


def _aligned(event: Event, comparisons: list[_Comparison]) -> Event:
    """On rank 0's clock. Both ends are moved, so that what lies inside of another event stays inside."""
    start_s = _moved(event.start_s, comparisons)
    duration_s = event.duration_s
    if duration_s is not None:
        end_s = _moved(round(event.start_s + duration_s, DIGITS), comparisons)
        duration_s = max(round(end_s - start_s, DIGITS), 0.0)
    return replace(event, start_s=start_s, duration_s=duration_s)


def _moved(time_s: float, comparisons: list[_Comparison]) -> float:
    return round(time_s + offset_at(time_s, comparisons), DIGITS)


def offset_at(time_s: float, comparisons: list[_Comparison]) -> float:
    """What to add to a time: on the line between the comparisons around it, or the nearest one's outside of them."""
    after = next((i for i, comparison in enumerate(comparisons) if comparison.at_s >= time_s), None)
    if after is None:
        return comparisons[-1].offset_s
    if after == 0:
        return comparisons[0].offset_s
    left, right = comparisons[after - 1], comparisons[after]
    share = (time_s - left.at_s) / (right.at_s - left.at_s)
    return left.offset_s + share * (right.offset_s - left.offset_s)


# -- JSON -------------------------------------------------------------------------------------------------------------
class _Fields:
    """A JSON object whose fields are read with their types; `where` begins what is said of wrong ones."""

    def __init__(self, entry: Any, where: str) -> None:
        self.where = where
        if not isinstance(entry, dict):
            raise RecordError(f"{where}: expected a JSON object, got {_short(entry)}")
        self._entry: dict[str, Any] = entry

    def get(self, name: str) -> Any:
        return self._entry.get(name)

    def text(self, name: str) -> str:
        return self._of(name, str, "text")

    def text_or_none(self, name: str) -> str | None:
        return None if self.get(name) is None else self.text(name)

    def mapping(self, name: str) -> dict[str, Any]:
        return self._of(name, dict, "an object")

    def entries(self, name: str, *, needed: bool = True) -> list[Any]:
        if not needed and self.get(name) is None:
            return []
        return self._of(name, list, "a list")

    def number(self, name: str) -> float:
        value = self.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(float(value)):
            raise self._mismatch(name, "a finite number")
        return float(value)

    def number_or_none(self, name: str) -> float | None:
        return None if self.get(name) is None else self.number(name)

    def count(self, name: str) -> int:
        value = self.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self._mismatch(name, "a whole number from 0 on")
        return value

    def count_or_none(self, name: str) -> int | None:
        return None if self.get(name) is None else self.count(name)

    def _of(self, name: str, kind: type[T], expected: str) -> T:
        value = self.get(name)
        if not isinstance(value, kind):
            raise self._mismatch(name, expected)
        return value

    def _mismatch(self, name: str, expected: str) -> RecordError:
        got = _short(self._entry[name]) if name in self._entry else "nothing"
        return RecordError(f"{self.where}: {name}: expected {expected}, got {got}; the folder is damaged")


def _lines(path: Path, is_wanted: Callable[[str], bool] = lambda line: True) -> Iterator[tuple[str, Any]]:
    """Where each wanted line stands, and what it says. The last one may not be whole: somebody is writing it."""
    if not path.is_file():
        return
    try:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                if line.strip() and is_wanted(line):
                    try:
                        yield f"{path}:{number}", _parsed(path, line, number)
                    except RecordError:
                        if line.endswith("\n"):
                            raise
    except OSError as problem:
        raise RecordError(f"{path}: cannot be read: {problem.strerror}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as problem:
        raise RecordError(f"{path}: cannot be read: {problem.strerror}") from None


def _parsed(path: Path, text: str, line: int | None) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as problem:
        where = path if line is None else f"{path}:{line}"
        raise RecordError(f"{where}: expected JSON, got text that is none: {problem}; the folder is damaged") from None


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON's")


def _short(value: Any) -> str:
    return json.dumps(value)[:60]
