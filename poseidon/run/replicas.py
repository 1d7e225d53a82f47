"""Replicas: are the parameters of all workers the same, bit for bit?

A checksum is 64 bits of a unit's bytes. Statistics that workers gather each for itself are left out (statistics.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.comm.part import flat
from poseidon.errors import WorkersDiffer
from poseidon.net.net import Net
from poseidon.plan import CommPlan
from poseidon.run.profile import param_names
from poseidon.run.roundtable import Roundtable
from poseidon.run.statistics import holds_statistics


def checksum(tensors: Sequence[Tensor]) -> int:
    """64 bits that tell whether tensors hold the same bytes, in memory order."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(flat(tensor.detach()).cpu().view(torch.uint8).numpy().data)
    return int.from_bytes(digest.digest(), "little", signed=True)


def groups_of(values: Sequence[object]) -> list[tuple[int, ...]]:
    """The ranks that hold equal values, the group of rank 0 first, then in order of their first rank."""
    groups: dict[object, list[int]] = {}
    for rank, value in enumerate(values):
        groups.setdefault(value, []).append(rank)
    return [tuple(group) for group in groups.values()]


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 2`, `ranks 0, 1 and 3`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def workers_text(ranks: Sequence[int], table: Roundtable) -> str:
    """`rank 2 (host b)`, `ranks 0 and 1 (hosts a, b)`."""
    hosts = list(dict.fromkeys(table.peers[rank].host for rank in ranks))
    return f"{ranks_text(ranks)} (host{'s' if len(hosts) > 1 else ''} {', '.join(hosts)})"


class ReplicaCheck:
    """Compares the parameters of all workers, unit by unit."""

    def __init__(self, net: Net, plan: CommPlan, table: Roundtable, *, with_statistics: bool) -> None:
        values = dict(zip(param_names(net), (entry.value for entry in net.learnable), strict=True))
        self._table = table
        self._units = [
            (unit.index, [n for n in unit.params if with_statistics or not holds_statistics(net, values[n])])
            for unit in plan.units
        ]
        self._values = values

    def run(self, iteration: int) -> None:
        """Raises on every worker if any two differ. Nothing may be on its way."""
        own = [checksum([self._values[name] for name in names]) for _, names in self._units]
        by_rank = self._table.gather(torch.tensor(own, dtype=torch.int64))
        for (index, names), column in zip(self._units, by_rank.t().tolist(), strict=True):
            first, *others = groups_of(column)
            if others:
                others_text = ", which differ from ".join(ranks_text(group) for group in (first, *others))
                raise WorkersDiffer(
                    f"after iteration {iteration} the parameters of unit {index} ({', '.join(names)}) are not the same "
                    f"on all workers: {others_text}; a fault of memory or network, or a layer that computes "
                    "differently on each worker: go on from the last snapshot",
                    tuple(rank for group in others for rank in group),
                )
