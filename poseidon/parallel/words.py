"""Words: what each worker says at the beginning of an iteration, heard by all at its end.

    fingerprint   which parameters learn: workers that have frozen different ones must not exchange
    batch         the leading extent of the first input: where it stays changed, the plan is renewed
    dense         how much more often than not factors have had to go dense lately, as far as this worker knows
    active        0 from a worker that has no more data (Join)

A word is one small message to everybody, beside the forward and backward pass; nobody waits for it before its end,
unless its own fingerprint has changed: then all have to change together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from poseidon.errors import WorkersDiffer
from poseidon.run.roundtable import Roundtable
from poseidon.transport import Work


@dataclass(frozen=True, slots=True)
class Word:
    fingerprint: int
    batch: int
    dense: int = 0
    active: int = 1


class Saying:
    """One word on its way."""

    def __init__(self, word: Word, table: Roundtable) -> None:
        self._table = table
        self._words = torch.tensor([(word.fingerprint, word.batch, word.dense, word.active)] * table.size)
        self._work: Work = table.start_gather(self._words)

    def heard(self) -> list[Word]:
        """Everybody's, by rank."""
        self._work.wait()
        return [Word(*entry) for entry in self._words.tolist()]


def check_alike(words: Sequence[Word]) -> None:
    """Raises if workers differ in what learns; also from one that has no more data, but takes part."""
    others = tuple(rank for rank, word in enumerate(words) if word.fingerprint != words[0].fingerprint)
    if others:
        raise WorkersDiffer(
            f"the parameters that learn (requires_grad) changed on some workers and not on others: ranks "
            f"{', '.join(map(str, others))} differ from the first; freeze and unfreeze the same parameters in the same "
            "iteration on all workers",
            others,
        )
