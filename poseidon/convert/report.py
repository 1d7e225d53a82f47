"""ConversionReport: what a conversion has written, and how near the result comes to the original."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from poseidon.convert.comparison import Difference


@dataclass(frozen=True, slots=True)
class Trial:
    """One set of inputs through both sides."""

    what: str
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class ConversionReport:
    files: tuple[Path, ...]
    notes: tuple[str, ...]
    trials: tuple[Trial, ...]

    @property
    def largest(self) -> float:
        return max((each.relative for trial in self.trials for each in trial.differences), default=0.0)
