"""Threads: how many of them compute what every worker computes for itself and all must get alike, to the bit.

Another number of threads may cut a product into other pieces, whose sums are rounded otherwise: uᵀ v of 16 rows of 10
and 500 has other bits in float32 by two threads than by one. So factors are rebuilt by as many threads on every worker
as the worker has that has fewest. Nothing else is: what a layer makes of its own batch goes to the others as it is, and
a host with more cores than the others keeps them for that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Threads:
    """`own`: this worker's; `fewest`: of any worker."""

    own: int
    fewest: int

    @classmethod
    def here(cls) -> Threads:
        """As if all workers had this one's."""
        return cls(torch.get_num_threads(), torch.get_num_threads())

    @contextlib.contextmanager
    def alike(self) -> Iterator[None]:
        """Within, the calling thread computes as on all workers. Other threads of the process go on as they are."""
        if torch.get_num_threads() == self.fewest:
            yield
            return
        torch.set_num_threads(self.fewest)
        try:
            yield
        finally:
            torch.set_num_threads(self.own)
