"""Vitals: where a worker stands, told with every sign of life, so that the others can say it when the worker cannot.

clock       finished iterations
unit        what was last put on its way to the other workers
num_sent    Sends started since the beginning: workers start them in one order, so these can be compared
waits_for   the unit that the next step of training needs and that is not there yet; "": none
num_needed  how many Sends must have started everywhere for that
waited_s    for how long already
figures     loss, rate, …: for people
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

MOST_FIGURES = 16


@dataclass(frozen=True, slots=True)
class Vitals:
    clock: int = 0
    unit: str = ""
    num_sent: int = 0
    waits_for: str = ""
    num_needed: int = 0
    waited_s: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: object) -> Vitals | None:
        """None if this is not what `to_json` gives: the other side is not trusted to be well."""
        if not isinstance(entry, Mapping):
            return None
        try:
            figures = list(entry["figures"].items())[:MOST_FIGURES]
            return cls(
                clock=int(entry["clock"]),
                unit=str(entry["unit"])[:200],
                num_sent=int(entry["num_sent"]),
                waits_for=str(entry["waits_for"])[:200],
                num_needed=int(entry["num_needed"]),
                waited_s=float(entry["waited_s"]),
                figures={str(name)[:40]: float(value) for name, value in figures},
            )
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            return None

    def __str__(self) -> str:
        """Continues a sentence about a worker that is lost."""
        unit = f", its last unit was {self.unit}" if self.unit else ""
        return f"it was at clock {self.clock}{unit}"


VitalsSource = Callable[[], Vitals | None]


def no_vitals() -> Vitals | None:
    """For workers of whom nobody knows where they stand."""
    return None
