"""TrainingLog: what the log of a training run says, whether Caffe wrote it or we did.

    log = read_log("train.log")
    log.train, log.test      rows as Caffe's parse_log.py makes them: NumIters, Seconds, LearningRate and the net's
                             outputs by name
    log.losses, log.scores   points as Caffe's older parse_log.sh does: loss and rate at each display; of each test (of
                             the first test net) accuracy and loss

Seconds count from the line `Solving …`. Lines begin with glog's severity, date and time; the date has a year or not,
and one that does not may pass the new year.

parse_log.py gives a row of training outputs the rate that was shown last before it, which is that of the display
before; so it is here, for its readers. `losses` have the rate of their own display.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from poseidon.errors import DataError

_STAMP = re.compile(r"[IWEF](\d{4})?(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?\s")
_NUMBER = r"([-+]?(?:[.\d]+(?:[eE][-+]?\d+)?|nan|inf))"
_ITERATION = re.compile(r"Iteration (\d+)")
_TESTING = re.compile(r"Iteration (\d+), Testing net \(#(\d+)\)")
_LOSS = re.compile(rf"Iteration (\d+)(?: \([^)]*\))?, loss = {_NUMBER}")
_RATE = re.compile(rf"Iteration (\d+), lr = {_NUMBER}")
_OUTPUT = re.compile(rf"(Train|Test) net output #(\d+): (\S+) = {_NUMBER}")

Row = dict[str, float]


@dataclass(slots=True)
class LossPoint:
    """One display of a training run; the last loss of a run comes without a rate."""

    iteration: int
    seconds: float
    loss: float
    rate: float | None = None


@dataclass(slots=True)
class ScorePoint:
    """One test. The loss is the first output called so, or else the second; accuracy likewise, or else the first other
    one."""

    iteration: int
    seconds: float
    outputs: dict[str, float] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        others = [value for name, value in self.outputs.items() if "loss" not in name.lower()]
        return next(iter([*self._called("acc"), *others]), None)

    @property
    def loss(self) -> float | None:
        return next(iter([*self._called("loss"), *list(self.outputs.values())[1:]]), None)

    def _called(self, part: str) -> list[float]:
        return [value for name, value in self.outputs.items() if part in name.lower()]


@dataclass(frozen=True, slots=True)
class TrainingLog:
    path: str
    train: list[Row]
    test: list[Row]
    losses: list[LossPoint]
    scores: list[ScorePoint]


@dataclass(frozen=True, slots=True)
class _Line:
    """A line since training began."""

    seconds: float
    text: str


def read_log(path: str) -> TrainingLog:
    """What a log file says."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            stamped = list(_stamped(file, datetime.fromtimestamp(os.stat(path).st_mtime).year))
    except OSError as problem:
        raise DataError(f"{path}: cannot be read ({problem.strerror})") from None
    start = next((index for index, (_, text) in enumerate(stamped) if "Solving" in text), None)
    if start is None:
        raise DataError(f"{path}: has no line `Solving …`, with which training begins; is this a training run's log?")
    began = stamped[start][0]
    lines = [_Line((time - began).total_seconds(), text) for time, text in stamped[start + 1 :]]
    return TrainingLog(path, _rows(lines, "Train"), _rows(lines, "Test"), _losses(lines), _scores(lines))


def _stamped(lines: Iterable[str], year: int) -> Iterator[tuple[datetime, str]]:
    """The lines that begin as glog's do, with their times."""
    month = 0
    for text in lines:
        found = _STAMP.match(text)
        if found is None:
            continue
        if found[1] is None and int(found[2]) < month:
            year += 1
        month = int(found[2])
        day, hour, minute, second = (int(part) for part in found.groups()[2:6])
        microsecond = int((found[7] or "").ljust(6, "0"))
        try:
            yield datetime(int(found[1] or year), month, day, hour, minute, second, microsecond), text
        except ValueError:  # no such day
            continue


# -- rows, as parse_log.py makes them ---------------------------------------------------------------------------------
def _rows(lines: Iterable[_Line], kind: str) -> list[Row]:
    """A row is complete when it has as many columns as the first; that one, when another iteration follows."""
    rows: list[Row] = []
    row: Row = {}
    iteration, rate = -1.0, float("nan")
    for line in lines:
        if found := _ITERATION.search(line.text):
            iteration = float(found[1])
        if found := _RATE.search(line.text):
            rate = float(found[2])
        found = _OUTPUT.search(line.text)
        if found is None or found[1] != kind or iteration < 0:
            continue
        if row and row["NumIters"] != iteration:
            rows.append(row)
            row = {}
        row = row or {"NumIters": iteration, "Seconds": line.seconds, "LearningRate": rate}
        row[found[3]] = float(found[4])
        if rows and len(row) == len(rows[0]):
            rows.append(row)
            row = {}
    if row and not rows:
        rows.append(row)
    if len(rows) > 1:
        rows[0]["LearningRate"] = rows[1]["LearningRate"]  # not shown before the first row
    return rows


# -- points, as parse_log.sh makes them -------------------------------------------------------------------------------
def _losses(lines: Iterable[_Line]) -> list[LossPoint]:
    points: list[LossPoint] = []
    for line in lines:
        if found := _LOSS.search(line.text):
            points.append(LossPoint(int(found[1]), line.seconds, float(found[2])))
        elif (found := _RATE.search(line.text)) and points and points[-1].iteration == int(found[1]):
            points[-1].rate = float(found[2])
    return points


def _scores(lines: Iterable[_Line]) -> list[ScorePoint]:
    points: list[ScorePoint] = []
    is_first_net = False
    for line in lines:
        if found := _TESTING.search(line.text):
            is_first_net = found[2] == "0"
            if is_first_net:
                points.append(ScorePoint(int(found[1]), line.seconds))
        elif is_first_net and (found := _OUTPUT.search(line.text)) and found[1] == "Test":
            points[-1].outputs[found[3]] = float(found[4])
    return [point for point in points if point.outputs]
