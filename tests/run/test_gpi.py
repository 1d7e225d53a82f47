"""A team that trains by notified puts: tests, snapshots and replicas as with every other pattern."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from poseidon.plan import Cluster, PlanRequest, Scheme, make_plan
from poseidon.run.distribute import DistributeOptions, distribute
from poseidon.run.layer_times import estimated_times
from poseidon.run.profile import profile_net
from poseidon.solver import Solver, events
from poseidon.spec import caffe_pb2
from poseidon.transport import Transport
from poseidon.transport.inproc import run_workers
from tests.run.jobs import assert_alike, assert_close, built, parameters, picture_net, solver_param

NORM = """layer { name: "bn" type: "BatchNorm" bottom: "h" top: "h" }
          layer { name: "scale" type: "Scale" bottom: "h" top: "h" scale_param { bias_term: true } }"""
OPTIONS = DistributeOptions(agree_s=0, sync_bn=True, verify_replicas=2)


def by_puts(
    size: int, param: caffe_pb2.SolverParameter, act: Callable[[Solver], Any], scheme: Scheme | None = None
) -> list[Any]:
    def work(transport: Transport) -> Any:
        solver, heard = built(param)
        profile = profile_net(solver.net, estimated_times(solver.net, 1e9), iter_size=1, needs_all_gradients=False)
        request = PlanRequest(pattern="gpi", scheme=scheme)
        plan = make_plan(profile, Cluster((1,) * size, bandwidth_bps=1e9), request)
        with distribute(solver, transport, plan, OPTIONS) as distribution:
            assert distribution.carriers == "inproc"
            found = act(solver)
            tests = [[output.value for output in event.outputs] for event in heard.of(events.TestDone)]
        return found, tests

    return run_workers(size, work, timeout_s=60)


@pytest.mark.parametrize("scheme", [Scheme.SERVER, Scheme.TREE, Scheme.FACTORS])
def test_trained_tested_stopped_and_resumed(pictures, tmp_path, scheme):
    text = f'test_interval: 3 test_iter: 2 snapshot_prefix: "{tmp_path / "s"}"'
    param = solver_param(picture_net(pictures, 2, middle=NORM), text)

    def straight(solver: Solver) -> list[torch.Tensor]:
        solver.step(4)
        solver.snapshot()
        solver.step(4)
        return parameters(solver)

    def resumed(solver: Solver) -> list[torch.Tensor]:
        solver.restore(tmp_path / "s_iter_4.solverstate")
        solver.step(4)
        return parameters(solver)

    found = by_puts(3, param, straight, scheme)
    values = [values for values, _ in found]
    assert_alike(values)
    again = [values for values, _ in by_puts(3, param, resumed, scheme)]
    assert_alike([values[0], *again])

    solver, heard = built(solver_param(picture_net(pictures, 6, middle=NORM), text))
    solver.step(8)
    assert_close(values[0], parameters(solver))
    expected = [[output.value for output in event.outputs] for event in heard.of(events.TestDone)]
    assert len(expected) > 1
    torch.testing.assert_close(torch.tensor(found[0][1]), torch.tensor(expected))


def test_a_snapshot_goes_on_by_another_pattern(pictures, tmp_path):
    """Its plan comes along: who resumes by collectives and brings no plan of another pattern trains on by puts."""
    text = f'snapshot_prefix: "{tmp_path / "s"}"'
    param = solver_param(picture_net(pictures, 2), text)

    def stop(solver: Solver) -> list[torch.Tensor]:
        solver.step(3)
        solver.snapshot()
        solver.step(3)
        return parameters(solver)

    values = [values for values, _ in by_puts(2, param, stop)]

    def work(transport: Transport) -> list[torch.Tensor]:
        solver, _ = built(param)
        profile = profile_net(solver.net, estimated_times(solver.net, 1e9), iter_size=1, needs_all_gradients=False)
        plan = make_plan(profile, Cluster((1, 1), bandwidth_bps=1e9))
        with distribute(solver, transport, plan, DistributeOptions(agree_s=0)) as distribution:
            solver.restore(tmp_path / "s_iter_3.solverstate")
            assert distribution.plan.pattern == "gpi"
            solver.step(3)
            return parameters(solver)

    assert_alike([values[0], *run_workers(2, work, timeout_s=60)])


def test_bytes_that_are_put_are_counted(pictures):
    """SERVER: every element's gradient comes to its owner from the other two, and its value goes to these."""

    def work(transport: Transport) -> tuple[int, int]:
        solver, _ = built(solver_param(picture_net(pictures, 2)))
        profile = profile_net(solver.net, estimated_times(solver.net, 1e9), iter_size=1, needs_all_gradients=False)
        plan = make_plan(
            profile, Cluster((1,) * 3, bandwidth_bps=1e9), PlanRequest(pattern="gpi", scheme=Scheme.SERVER)
        )
        with distribute(solver, transport, plan, DistributeOptions(agree_s=0)) as distribution:
            solver.step(5)
            solver.updates.drain()
            return distribution.sent_bytes, sum(value.numel() for value in solver.net.parameters())

    found = run_workers(3, work, timeout_s=60)
    assert sum(sent for sent, _ in found) == 5 * 4 * found[0][1] * 8
