"""What is left of a solver's updates when its team has parted: parameters may be looked at, nothing may change.

Histories are spread over workers that are no longer there, so nobody can go on alone from here; from a snapshot anybody
can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from torch import Tensor

from poseidon.errors import UsageError
from poseidon.solver.clip import Clipping
from poseidon.solver.rules import Hyper


class EndedUpdates:
    def begin(self) -> None:
        _refuse("train")

    def start(self, hyper: Hyper) -> None:
        _refuse("train")

    def finish(self) -> Clipping | None:
        _refuse("train")

    def drain(self) -> None:
        """Nothing is on its way."""

    def histories(self) -> list[Tensor]:
        _refuse("write a snapshot")

    def restore_histories(self, histories: Sequence[Tensor]) -> None:
        _refuse("restore a snapshot")


def _refuse(what: str) -> NoReturn:
    raise UsageError(
        f"this solver's workers have parted, so it cannot {what} any more; do it before the distribution is closed, or "
        "build a new solver"
    )
