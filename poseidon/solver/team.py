"""Team: the workers that train one net together, as the step loop sees them. The second seam to communication, beside
`updates.py`: everything that is not a gradient.

    mean       numbers to be shown are averaged over workers
    agree      what is asked of one worker is done by all, in the same iteration
    level      replicas are made alike where training lets them differ, before anybody looks at them or saves them
    deal       test batches are dealt out
    state      what a snapshot keeps of each worker, besides what all have in common

All workers make the same calls in the same order. Rank 0 writes snapshots. A solver by itself is `Alone`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from poseidon.net.net import Net
from poseidon.solver.action import Action


@dataclass(frozen=True, slots=True)
class Sums:
    """What the batches of a test add up to; `outputs` by blob, empty on a worker that had no batch."""

    loss: Tensor
    outputs: dict[str, Tensor]


class Deal(Protocol):
    """The batches of one test, dealt out in rounds."""

    def rounds(self) -> Iterator[bool]:
        """One entry per round, the same number on all workers: true where this worker has a batch to run.

        When all rounds are over the net stands where one worker's would after all batches.
        """

    def means(self, sums: Sums) -> Sums:
        """From this worker's sums: the means over all batches, on every worker."""


class Team(Protocol):
    rank: int

    def mean(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Each tensor averaged over workers, element by element."""

    def agree(self, request: Action, *, testing: bool) -> Action:
        """What all do now. Called after every iteration, and (`testing`) before every round of a test."""

    def level(self) -> None:
        """Called when nothing is on its way, before every test and snapshot."""

    def deal(self, net: Net, num_batches: int) -> Deal: ...

    def meet(self) -> None:
        """Returns when all workers have come here."""

    def state(self) -> Any:
        """For a snapshot's sidecar, a value that JSON can hold; None: nothing."""

    def restore(self, state: Any) -> None:
        """Takes its part of a state; None: the snapshot has none."""


class Alone:
    """A team of one."""

    rank = 0

    def mean(self, values: Sequence[Tensor]) -> list[Tensor]:
        return list(values)

    def agree(self, request: Action, *, testing: bool) -> Action:
        return request

    def level(self) -> None:
        """Nobody to be like."""

    def deal(self, net: Net, num_batches: int) -> Deal:
        return AllBatches(num_batches)

    def meet(self) -> None:
        """Nobody to wait for."""

    def state(self) -> Any:
        return None

    def restore(self, state: Any) -> None:
        """What other workers left in a snapshot has no use here."""


class AllBatches:
    """Every batch is this worker's."""

    def __init__(self, num_batches: int) -> None:
        self._num_batches = num_batches

    def rounds(self) -> Iterator[bool]:
        return iter([True] * self._num_batches)

    def means(self, sums: Sums) -> Sums:
        # A test without batches has the mean loss 0 / 0, and no outputs.
        outputs = {name: total / self._num_batches for name, total in sums.outputs.items()}
        return Sums(sums.loss.double() / self._num_batches, outputs)
