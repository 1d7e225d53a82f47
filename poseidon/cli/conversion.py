"""What `export` and `import` share: values of their flags, and what they print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from poseidon.errors import UsageError

if TYPE_CHECKING:
    from poseidon.convert.report import ConversionReport, Trial


def assigned(words: Iterable[str], flag: str, example: str) -> dict[str, str]:
    """NAME=VALUE, given any number of times."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise UsageError(f"--{flag} {word}: expected a name and a value, as in --{flag} {example}")
        found[name] = value
    return found


def parse_shapes(words: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """NAME=1,3,224,224, or with x between the numbers."""
    example = "data=1,3,224,224"
    shapes = {}
    for name, text in assigned(words, "shape", example).items():
        parts = text.replace("x", ",").split(",")
        if not all(part.strip().isdecimal() and 0 < int(part) < 2**31 for part in parts):
            raise UsageError(f"--shape {name}={text}: expected whole numbers above 0, as in --shape {example}")
        shapes[name] = tuple(int(part) for part in parts)
    return shapes


def show_export(report: ConversionReport, notes: Sequence[str], tolerance: float) -> int:
    for path in report.files:
        print(f"wrote {path}")
    for note in (*notes, *report.notes):
        print(f"note: {note}")
    return show_trials(report.trials, report.largest, tolerance)


def show_import(report: ConversionReport, tolerance: float) -> int:
    for path in report.files:
        print(f"wrote {path}")
    for note in report.notes:
        print(f"note: {note}")
    return show_trials(report.trials, report.largest, tolerance)


def show_trials(trials: Sequence[Trial], largest: float, tolerance: float) -> int:
    """The largest difference of every output; exit code 1 where one is larger than allowed."""
    for trial in trials:
        print(f"{trial.what}:")
        # Weights that were read back are many, and alike.
        shown = trial.differences if len(trial.differences) <= 20 else trial.differences[:0]
        for difference in shown:
            print(f"  {difference}")
        if not shown:
            worst = max(each.relative for each in trial.differences)
            print(f"  {len(trial.differences)} blobs: largest relative difference {worst:.2e}")
    if not trials:
        print("not checked")
        return 0
    if largest > tolerance:
        print(f"FAILED: the two sides differ by {largest:.2e}, more than {tolerance:g}")
        return 1
    print(f"ok: both sides agree within {tolerance:g}")
    return 0
