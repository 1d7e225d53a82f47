"""A sample of the exchanges over c10d between processes: what test_exact.py and test_failures.py show inside one."""

from __future__ import annotations

import pytest
import torch

from poseidon.plan import PlanRequest, Scheme
from tests.comm import jobs
from tests.comm.nets import CLIPPED, CROPPED, IGNORING, LENET, MLP, TIED, WORDS
from tests.comm.training import plain_request, plan_of
from tests.workers import WorkerPool

pytestmark = pytest.mark.xdist_group("workers")

SIZE = 3
SAMPLE = (
    (MLP, "Adam", plain_request(scheme=Scheme.FACTORS)),
    (MLP, "SGD", PlanRequest()),
    (LENET, "Nesterov", plain_request(scheme=Scheme.RING, chunk_bytes=(320.0,))),
    (LENET, "AdaDelta", plain_request(scheme=Scheme.FACTOR_SERVER, chunk_bytes=(320.0,))),
    (TIED, "RMSProp", plain_request(scheme=Scheme.SERVER, fuse_bytes=(1e6,))),
    (CLIPPED, "AdaGrad", plain_request(scheme=Scheme.SERVER)),
    (IGNORING, "SGD", plain_request(scheme=Scheme.FACTOR_SERVER)),
    (WORDS, "Adam", plain_request(scheme=Scheme.ROWS)),
    (CROPPED, "SGD", plain_request(scheme=Scheme.DOUBLING, fuse_bytes=(1e6,))),
)


@pytest.mark.parametrize(("size", "chosen"), [(2, SAMPLE[::4]), (SIZE, SAMPLE), (4, SAMPLE[2::3])], ids=["2", "3", "4"])
def test_processes_equal_one_worker_with_all_their_batches(worker_pool: WorkerPool, size, chosen):
    sample = [(case, kind, plan_of(case, size, request)) for case, kind, request in chosen]
    jobs.assert_processes_like_one_worker(worker_pool, sample)


NODES = ((3,), (2, 1), (1, 2))


def test_processes_that_share_memory_equal_one_worker(worker_pool: WorkerPool):
    sample = [
        (case, kind, plan_of(case, NODES[number % 3], request)) for number, (case, kind, request) in enumerate(SAMPLE)
    ]
    jobs.assert_processes_like_one_worker(worker_pool, sample)


def test_narrow_wires_keep_replicas_alike(worker_pool: WorkerPool):
    trainings = [
        {"case": MLP.name, "kind": "SGD", "plan": plan_of(MLP, SIZE, plain_request(scheme=s, wire=wire)).to_json()}
        for s in (Scheme.RING, Scheme.SERVER, Scheme.FACTOR_SERVER)
        for wire in ("bf16", "fp16")
    ]
    by_rank = worker_pool.results(jobs.train_all, SIZE, trainings=trainings, steps=5)
    assert by_rank[1] == by_rank[0]
    assert by_rank[2] == by_rank[0]


@pytest.mark.parametrize("nodes", [(1, 1, 1), (3,), (1, 2)])
@pytest.mark.parametrize("scheme", [Scheme.RING, Scheme.SERVER, Scheme.FACTORS])
def test_a_worker_that_fails_is_named_with_what_was_exchanged(worker_pool: WorkerPool, scheme, nodes):
    plan = plan_of(jobs.DEEP, nodes, plain_request(scheme=scheme), torch.float32).to_json()
    outcomes = worker_pool.run(jobs.lose, SIZE, plan=plan, victim=1, how="raise")
    assert (outcomes[1].error, outcomes[1].text) == ("ValueError", "the cat sat on the cable")
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.error is None, outcome.trace
        assert outcome.value["ranks"] == [1]
        assert "ValueError: the cat sat on the cable" in outcome.value["text"]
        assert "fc7/0, fc7/1" in outcome.value["text"]


@pytest.mark.parametrize(("nodes", "victim"), [((1, 1, 1), 2), ((3,), 2), ((3,), 0), ((2, 1), 1), ((1, 2), 1)])
def test_a_worker_killed_while_exchanging_is_named(worker_pool: WorkerPool, nodes, victim):
    plan = plan_of(jobs.DEEP, nodes, plain_request(scheme=Scheme.SERVER), torch.float32).to_json()
    outcomes = worker_pool.run(jobs.lose, SIZE, lost=(victim,), plan=plan, victim=victim, how="kill")
    for outcome in outcomes[:victim] + outcomes[victim + 1 :]:
        assert outcome.error is None, outcome.trace
        assert outcome.value["ranks"] == [victim]
        assert "while exchanging unit" in outcome.value["text"]
