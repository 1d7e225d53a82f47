"""Training within a limit on bandwidth: every scheme gives the trajectory of one worker, cut into whatever pieces."""

from __future__ import annotations

import pytest
import torch

from poseidon.plan import Scheme
from poseidon.transport.inproc import run_workers
from poseidon.transport.levels import share_nodes
from poseidon.transport.paced import PacedTransport
from poseidon.transport.pacing import Pace
from tests.comm.nets import MLP, WORDS
from tests.comm.training import assert_replicas, join, one_worker, plain_request, plan_of, solver_of, values_of

SCHEMES = (Scheme.RING, Scheme.DOUBLING, Scheme.SERVER, Scheme.FACTORS, Scheme.FACTOR_SERVER)


CASES = [*((MLP, scheme) for scheme in SCHEMES), (WORDS, Scheme.ROWS)]


@pytest.mark.parametrize("nodes", [(1, 1, 1), (2, 1)], ids=str)
@pytest.mark.parametrize(("case", "scheme"), CASES, ids=[scheme.value for _, scheme in CASES])
def test_every_scheme_within_a_limit(case, scheme, nodes, monkeypatch):
    monkeypatch.setattr("poseidon.transport.pacing.MAX_PIECE_BYTES", 40)
    plan = plan_of(case, nodes, plain_request(scheme=scheme))

    def work(transport):
        paced = PacedTransport(transport, Pace(1e9))
        numbers = [node for node, count in enumerate(nodes) for _ in range(count)]
        worker = join(case, plan, share_nodes(paced, numbers).transport, solver_of(case, "SGD", case.batch))
        worker.solver.step(20)
        worker.updates.drain()
        worker.close()
        return values_of(worker.solver)

    values = run_workers(3, work, timeout_s=60)
    assert_replicas(values)
    for mine, expected in zip(values[0], one_worker(case, "SGD", 3), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-8, atol=1e-12)
