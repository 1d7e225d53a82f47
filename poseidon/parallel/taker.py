"""Taker: what becomes of a round at the end of backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn
from torch.optim import Optimizer

from poseidon.parallel.round import Round

if TYPE_CHECKING:
    from poseidon.parallel.replica import Replica


class Taker:
    """Waits, and puts averages into `grad`; `overlapping.py` has another.

    needs_all_gradients   nothing is used before all are there: what the planner should know
    """

    needs_all_gradients = True
    overlaps = False

    def wants_rows(self, parameter: nn.Parameter) -> bool:
        """True if a table's gradient is wanted as rows although its module gives a dense one."""
        return False

    def take(self, replica: Replica, round_: Round, used: Callable[[str], bool]) -> None:
        replica.traffic.scheduler.drain()
        for name, grad in round_.collect().items():
            if used(name):
                replica.structure.params[name].parameter.grad = grad

    def refresh(self) -> None:
        """Other parameters learn now."""

    def end(self) -> None:
        """The exchanges are over for good."""

    def check_step(self, optimizer: Optimizer) -> None:
        """An optimizer with parameters of the model is about to step: raises if it must not."""
