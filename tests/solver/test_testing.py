"""Tests between iterations: when they run, on whose parameters, and what they average."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from poseidon.errors import SolverError
from poseidon.solver import Action, Solver, events
from poseidon.solver.passes import PassResult
from poseidon.solver.testing import run_test
from tests.solver.small import made, net_message, solver_message, values


def test_test_nets_read_the_train_nets_own_memory(listing):
    solver, _ = made(solver_message(net_message(listing), "test_interval: 2 test_iter: 1 test_iter: 2"))
    assert len(solver.test_nets) == 2
    for net in solver.test_nets:
        for mine, own in zip(net.learnable, solver.net.learnable, strict=True):
            assert mine.value is own.value
        assert {id(p) for p in net.parameters()} == {id(p) for p in solver.net.parameters()}


def test_scores_are_means_over_the_batches(listing):
    solver, recorder = made(
        solver_message(net_message(listing, batch=2), "test_interval: 2 test_iter: 3 test_compute_loss: true")
    )
    solver.test(0)
    (done,) = recorder.of(events.TestDone)
    net = Solver(solver_message(net_message(listing, batch=2))).net
    expected = np.mean([float(net()["loss"].detach()) for _ in range(3)])
    assert done.loss == pytest.approx(expected, rel=1e-6)
    assert done.outputs[0].blob == "loss"
    assert done.outputs[0].value == pytest.approx(expected, rel=1e-6)
    assert all(slot.value.grad is None for slot in solver.slots)


@pytest.mark.parametrize(("text", "expected"), [("", [0, 2, 4]), ("test_initialization: false", [2, 4])])
def test_tests_come_at_their_interval(listing, text, expected):
    solver, recorder = made(solver_message(net_message(listing), f"test_interval: 2 test_iter: 1 {text}"))
    solver.step(5)
    assert [event.iteration for event in recorder.of(events.TestStarted)] == expected


def test_testing_does_not_change_training(listing):
    net = net_message(listing, shuffle=True, dropout=0.3)
    tested, _ = made(solver_message(net, "test_interval: 1 test_iter: 2"))
    plain, _ = made(solver_message(net))
    tested.step(4)
    plain.step(4)
    assert all(torch.equal(a, b) for a, b in zip(values(tested), values(plain), strict=True))


def test_stop_and_snapshot_between_test_batches(listing, tmp_path):
    text = f'test_interval: 2 test_iter: 5 snapshot_prefix: "{tmp_path / "s"}"'
    solver, recorder = made(solver_message(net_message(listing), text))
    asked = iter([Action.NONE, Action.SNAPSHOT, Action.NONE, Action.STOP])
    solver.action = lambda: next(asked)
    solver.step(4)
    assert solver.iter == 0
    assert [event.iteration for event in recorder.of(events.SnapshotWritten)] == [0]
    assert recorder.of(events.TestInterrupted) == [events.TestInterrupted(0, 0)]
    assert recorder.of(events.TestDone) == []


def test_a_test_of_no_batches_gives_no_scores(listing):
    solver, recorder = made(solver_message(net_message(listing), "test_interval: 2 test_iter: 0"))
    solver.test_all()
    assert recorder.of(events.TestDone) == [events.TestDone(0, 0, None, ())]


def test_outputs_of_changing_shape_have_no_mean(listing):
    solver, _ = made(solver_message(net_message(listing)))
    shapes = iter([(2,), (3,)])

    def run(*, backward):
        return PassResult(torch.zeros(()), {"loss": torch.zeros(next(shapes))})

    with pytest.raises(SolverError, match=r"output 'loss' of the test net had shape \(2,\) in one batch and \(3,\)"):
        run_test(solver.net, run, 2, lambda: False, compute_loss=False)
