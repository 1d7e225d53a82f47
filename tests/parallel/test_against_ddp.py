"""Ten steps by Parallel end where ten steps by DistributedDataParallel end, on many models; replicas are alike.

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
        jobs.compare, size, names=[case.name], kinds=list(case.kinds), ways=ways, timeout_s=120
    )
    for rank, found in enumerate(by_rank):
        for what, entry in found.items():
            assert entry["difference"] < 1e-8, (rank, what)
            assert entry["sums"] == by_rank[0][what]["sums"], (rank, what)


USUAL = ("mlp", "resnet", "char", "recommender")
SINGLES = [
    pytest.param(
        case, size, marks=() if size == 4 and case.name in USUAL else pytest.mark.full, id=f"{case.name}-{size}"
    )
    for case in CASES
    for size in (2, 4)
]


@pytest.mark.parametrize(("case", "size"), SINGLES)
def test_in_single_precision_no_further_than_ddp_from_itself(worker_pool: WorkerPool, case, size):
    """Two runs of DistributedDataParallel with another bucket size, or with samples in another order, differ by nothing
    but the order of sums: three times that is allowed. Where its own runs agree to the bit, a few roundings are.
    """
    kinds = list(case.kinds)
    by_rank = worker_pool.results(jobs.compare_singles, size, names=[case.name], kinds=kinds, timeout_s=120)
    for what, entry in by_rank[0].items():
        assert entry["ours"] <= max(3 * entry["theirs"], 2e-6), (what, entry)


@pytest.mark.parametrize("way", ["plain", "overlap"])
@pytest.mark.parametrize("divides_by_all", [True, False])
@pytest.mark.parametrize("steps", [[6, 8], [6, 22], [22, 4], [0, 9]], ids=str)
def test_uneven_inputs_end_as_with_ddp(worker_pool: WorkerPool, way, divides_by_all, steps):
    arguments = {"kind": "SGD", "way": way, "divides_by_all": divides_by_all, "steps": steps}
    assert max(worker_pool.results(jobs.uneven, 2, timeout_s=60, names=["mlp", "resnet"], **arguments)) < 1e-8


def test_join_may_be_turned_off(worker_pool: WorkerPool):
    arguments = {"names": ["mlp"], "kind": "SGD", "way": "overlap", "steps": [7, 7], "enable": False}
    assert max(worker_pool.results(jobs.uneven, 2, timeout_s=60, **arguments)) < 1e-8
