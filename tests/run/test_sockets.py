"""The same team over real sockets, in processes of their own: a sample of what the in-process tests hold in full."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from poseidon.plan import Scheme
from poseidon.run.distribute import DistributeOptions, distribute
from poseidon.solver import Action, events
from tests.run.jobs import built, parameters, picture_net, plan_for, solver_param
from tests.transport.jobs import joined
from tests.worker_process import Seat

pytestmark = pytest.mark.xdist_group("workers")

NORM = """layer { name: "bn" type: "BatchNorm" bottom: "h" top: "h" }
          layer { name: "scale" type: "Scale" bottom: "h" top: "h" scale_param { bias_term: true } }"""
NUM_ITERATIONS = 9
TEXT = "display: 2 test_interval: 4 test_iter: 5 random_seed: -1"


def train(seat: Seat, net: str, text: str, scheme: str, stops: bool) -> dict[str, Any]:
    """Trains as one of the workers; rank 1 asks to stop in the fourth iteration if `stops`."""
    with joined(seat) as transport:
        solver, heard = built(solver_param(net, text))
        options = DistributeOptions(sync_bn=True, verify_replicas=3, agree_s=0)
        with distribute(solver, transport, plan_for(solver, seat.size, Scheme[scheme]), options):
            asks = stops and seat.rank == 1
            solver.action = lambda: Action.STOP if asks and solver.iter == 3 else Action.NONE
            solver.step(NUM_ITERATIONS)
            found = {
                "seed": solver.seed,
                "iter": solver.iter,
                "values": [value.tolist() for value in parameters(solver)],
                "shown": [event.loss for event in heard.of(events.IterationShown)],
                "tests": [[output.value for output in event.outputs] for event in heard.of(events.TestDone)],
            }
            solver.snapshot()
        transport.barrier(30.0)
        return found


@pytest.mark.parametrize("scheme", ["RING", "SERVER", "FACTORS"])
def test_a_team_over_sockets_is_one_worker(worker_pool, pictures, tmp_path, scheme):
    text = f'{TEXT} snapshot_prefix: "{tmp_path / "s"}"'
    loss = "loss_param { ignore_label: 4 }"
    net = picture_net(pictures, 2, middle=NORM, loss=loss)
    by_rank = worker_pool.results(train, 3, net=net, text=text, scheme=scheme, stops=False)
    assert by_rank[1:] == by_rank[:-1]
    whole = picture_net(pictures, 6, middle=NORM, loss=loss)
    param = solver_param(whole, text)
    param.random_seed = by_rank[0]["seed"]
    solver, heard = built(param)
    solver.step(NUM_ITERATIONS)
    for found, expected in zip(by_rank[0]["values"], parameters(solver), strict=True):
        torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), expected, rtol=1e-8, atol=1e-12)
    shown = [event.loss for event in heard.of(events.IterationShown)]
    tests = [[output.value for output in event.outputs] for event in heard.of(events.TestDone)]
    assert by_rank[0]["shown"] == pytest.approx(shown, rel=1e-9)
    torch.testing.assert_close(torch.tensor(by_rank[0]["tests"]), torch.tensor(tests))
    restored, _ = built(param)
    restored.restore(tmp_path / f"s_iter_{NUM_ITERATIONS}.solverstate")
    assert restored.iter == NUM_ITERATIONS


def test_a_stop_asked_of_one_process(worker_pool, pictures, tmp_path):
    text = f'{TEXT} snapshot_prefix: "{tmp_path / "s"}"'
    by_rank = worker_pool.results(train, 3, net=picture_net(pictures, 2), text=text, scheme="RING", stops=True)
    assert [found["iter"] for found in by_rank] == [4, 4, 4]
