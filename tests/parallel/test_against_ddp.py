"""Ten steps by Parallel end where ten steps by DistributedDataParallel end, on twelve models; replicas are alike.

DistributedDataParallel itself is the oracle, over gloo, in the same processes.
"""

from __future__ import annotations

import pytest

from tests.parallel import jobs
from tests.parallel.models import CASES
from tests.workers import WorkerPool

pytestmark = pytest.mark.xdist_group("workers")


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_parallel_equals_ddp(worker_pool: WorkerPool, case, size):
    ways = ["plain", "overlap", "factors"] if size == 2 else ["plain", "overlap"]
    by_rank = worker_pool.results(
        jobs.compare, size, names=[case.name], kinds=["SGD", "AdamW"], ways=ways, timeout_s=120
    )
    for rank, found in enumerate(by_rank):
        for what, entry in found.items():
            assert entry["difference"] < 1e-8, (rank, what)
            assert entry["sums"] == by_rank[0][what]["sums"], (rank, what)
