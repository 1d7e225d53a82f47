"""debug_info: what it shows against figures taken from the net directly, and that looking changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from poseidon.net.stepwise import Stepwise
from poseidon.solver import Solver, events
from poseidon.solver.passes import StepwisePass
from tests.solver.small import losses, made, net_message, solver_message


def test_debug_info_shows_means_of_all_blobs(listing):
    solver, recorder = made(solver_message(net_message(listing), "debug_info: true display: 2"))
    reference = Stepwise(Solver(solver_message(net_message(listing))).net)
    reference.forward()
    reference.backward()
    solver.step(2)
    seen = recorder.of(events.BlobSeen)
    forward = [(e.layer, e.kind, e.blob) for e in seen if not e.backward]
    assert forward == [
        *[("rows", "top", "x"), ("rows", "top", "y")],
        *[("fc1", "top", "h"), ("fc1", "param", "0"), ("fc1", "param", "1"), ("tanh", "top", "h")],
        *[("fc2", "top", "out"), ("fc2", "param", "0"), ("fc2", "param", "1"), ("loss", "top", "loss")],
    ]
    backward = [(e.layer, e.kind, e.blob) for e in seen if e.backward]
    assert backward == [
        *[("loss", "bottom", "out"), ("fc2", "bottom", "h"), ("fc2", "param", "0"), ("fc2", "param", "1")],
        *[("tanh", "bottom", "h"), ("fc1", "param", "0"), ("fc1", "param", "1")],
    ]
    by_place = {(e.backward, e.layer, e.kind, e.blob): e.mean for e in seen}
    out = reference.blobs["out"]
    assert by_place[False, "fc2", "top", "out"] == pytest.approx(np.abs(out.data.numpy()).mean(), rel=1e-5)
    assert by_place[True, "loss", "bottom", "out"] == pytest.approx(np.abs(out.diff.numpy()).mean(), rel=1e-5)
    weight = reference.net.params["fc1"][0]
    assert by_place[True, "fc1", "param", "0"] == pytest.approx(np.abs(weight.grad.numpy()).mean(), rel=1e-5)
    (norms,) = recorder.of(events.GradientsSeen)
    data = np.concatenate([e.value.detach().numpy().ravel() for e in reference.net.learnable])
    diff = np.concatenate([e.value.grad.numpy().ravel() for e in reference.net.learnable])
    expected = [np.abs(data).sum(), np.abs(diff).sum(), np.sqrt((data**2).sum()), np.sqrt((diff**2).sum())]
    np.testing.assert_allclose([norms.data_l1, norms.diff_l1, norms.data_l2, norms.diff_l2], expected, rtol=1e-5)


def test_debug_info_draws_the_same_dropout(listing):
    net = net_message(listing, dropout=0.5)
    debugged, debugged_events = made(solver_message(net, "debug_info: true display: 1"))
    plain, plain_events = made(solver_message(net))
    debugged.step(4)
    plain.step(4)
    np.testing.assert_allclose(losses(debugged_events), losses(plain_events), rtol=1e-5)


def test_debug_info_of_a_test_net_shows_its_forward_pass(listing):
    solver, recorder = made(solver_message(net_message(listing), "debug_info: true test_interval: 2 test_iter: 2"))
    solver.test(0)
    seen = recorder.of(events.BlobSeen)
    assert {event.backward for event in seen} == {False}
    assert sum(event.layer == "loss" for event in seen) == 2


def test_stepwise_runs_leave_their_blobs_to_look_at(listing):
    solver, recorder = made(solver_message(net_message(listing)))
    stepwise = Stepwise(solver.net)
    solver.run = StepwisePass(stepwise)
    solver.step(2)
    assert float(stepwise.blobs["loss"].data) == pytest.approx(losses(recorder)[1])
