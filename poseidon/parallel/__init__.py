"""Any torch.nn.Module on several workers: `Parallel`, `overlap`, `wait`."""

from __future__ import annotations

from poseidon.parallel.overlapping import overlap
from poseidon.parallel.parallel import Parallel, wait

__all__ = ["Parallel", "overlap", "wait"]
