"""Cards: what each worker tells all others about where it runs; and what everybody concludes from all cards alike.

Nodes: a worker was told how many share its node (torchrun, Slurm, our launcher), or the host's name tells. The workers
of a host, in rank order, fill nodes of the size they were told.

Threads: the cores that workers of a node may use are divided among them. A worker that Slurm has bound to cores of its
own has those to itself; a core that several workers may use counts as a part for each. At least one thread each. What
all must compute alike is computed by the fewest that anybody has (`comm/threads.py`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction

import torch

from poseidon.comm.threads import Threads
from poseidon.run.roundtable import Roundtable


@dataclass(frozen=True, slots=True)
class Card:
    """`local_size` None: not told; `threads` None: to be decided here."""

    host: str
    local_size: int | None
    cores: tuple[int, ...]
    threads: int | None
    interface: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Card:
        fields = json.loads(text)
        return cls(**{**fields, "cores": tuple(fields["cores"])})


def nodes_of(cards: Sequence[Card]) -> list[int]:
    """The number of each worker's node, by rank; nodes are numbered in the order of their first ranks."""
    seen: Counter[str] = Counter()
    names: list[tuple[str, int]] = []
    for card in cards:
        names.append((card.host, seen[card.host] // card.local_size if card.local_size else 0))
        seen[card.host] += 1
    order = list(dict.fromkeys(names))
    return [order.index(name) for name in names]


def threads_of(cards: Sequence[Card], nodes: Sequence[int]) -> list[int]:
    """How many threads each worker computes with, by rank."""
    users = Counter((node, core) for card, node in zip(cards, nodes, strict=True) for core in card.cores)
    counts = []
    for card, node in zip(cards, nodes, strict=True):
        share = sum((Fraction(1, users[node, core]) for core in card.cores), Fraction(0))
        counts.append(card.threads or max(1, int(share)))
    return counts


def agree_on_threads(table: Roundtable) -> Threads:
    """What this worker computes with, and what the one with fewest does. All workers call it together."""
    own = torch.get_num_threads()
    return Threads(own, int(table.gather(torch.tensor(own)).min()))
