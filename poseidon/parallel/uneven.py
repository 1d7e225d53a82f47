"""Uneven inputs: a worker that has run out of data keeps the others company, with gradients of zero.

    with torch.distributed.algorithms.Join([model]):
        for batch in loader: …

While some workers still train, one that has joined says its word as inactive and takes part in every exchange with
nothing. In the end the parameters of the last one to join are everybody's. Means are over all workers of the job, or,
with divide_by_initial_world_size=False, over those that still train; both as in DistributedDataParallel.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.algorithms.join import JoinHook

from poseidon.parallel.buffers import copy_buffers, copy_parameters
from poseidon.parallel.replica import Replica


class Company(JoinHook):
    def __init__(self, replica: Replica, *, divides_by_all: bool) -> None:
        self._replica = replica
        replica.joining = True
        replica.divides_by_all = divides_by_all

    def main_hook(self) -> None:
        """An iteration of the others'."""
        self._replica.keep_company()

    def post_hook(self, is_last_joiner: bool) -> None:
        """All have joined: from the last one, lest the others keep what was theirs when they stopped."""
        replica = self._replica
        replica.joining = False
        replica.wait()
        roots = replica.table.gather_texts("1" if is_last_joiner else "")
        root = max(rank for rank, text in enumerate(roots) if text)
        copy_parameters(replica.model, replica.table, root)
        copy_buffers(replica.model, replica.table, root)


def company(replica: Replica, options: dict[str, Any]) -> Company:
    return Company(replica, divides_by_all=options.get("divide_by_initial_world_size", True))
