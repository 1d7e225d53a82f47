"""The step loop: what happens in which order, and what it computes, against plain PyTorch and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from poseidon.solver import Action, NetOptions, Solver, events
from poseidon.spec import caffe_pb2, parse
from tests.solver.small import losses, made, net_message, solver_message, values


# -- iterations -----------------------------------------------------------------------------------------------------
def test_training_is_the_hand_written_loop(listing):
    solver, recorder = made(solver_message(net_message(listing)))
    weights = [torch.nn.Parameter(value) for value in values(solver)]
    rates, velocity = [1, 2, 1, 1], [torch.zeros_like(w) for w in weights]
    reader = Solver(solver_message(net_message(listing))).net.layers["rows"]
    expected = []
    for _ in range(8):
        x, y = reader()
        out = torch.tanh(x @ weights[0].T + weights[1]) @ weights[2].T + weights[3]
        loss = ((out - y) ** 2).sum() / (2 * len(x))
        grads = torch.autograd.grad(loss, weights)
        expected.append(float(loss.detach()))
        with torch.no_grad():
            for w, g, v, rate in zip(weights, grads, velocity, rates, strict=True):
                v.mul_(0.9).add_(g + 0.001 * w, alpha=0.05 * rate)
                w.sub_(v)
    solver.step(8)
    np.testing.assert_allclose(losses(recorder), expected, rtol=1e-5)
    for got, want in zip(values(solver), weights, strict=True):
        torch.testing.assert_close(got, want.detach(), rtol=1e-5, atol=1e-6)


def test_iter_size_accumulates_to_the_larger_batch(listing):
    small, small_events = made(solver_message(net_message(listing, batch=2), "iter_size: 3"))
    large, large_events = made(solver_message(net_message(listing, batch=6)))
    small.step(6)
    large.step(6)
    np.testing.assert_allclose(losses(small_events), losses(large_events), rtol=1e-5)
    for one, other in zip(values(small), values(large), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_clipping_comes_before_the_division_by_iter_size(listing):
    """The norm clipped is that of the sum over micro-batches, so the same limit bites iter_size times harder."""
    limit = 0.2
    solver, recorder = made(
        solver_message(
            net_message(listing, batch=2), f"iter_size: 3 clip_gradients: {limit} momentum: 0 weight_decay: 0"
        )
    )
    before = values(solver)
    solver.step(1)
    (clipped,) = recorder.of(events.GradientsClipped)
    assert clipped.norm > limit
    assert clipped.factor == pytest.approx(limit / clipped.norm)
    moved = torch.cat(
        [((a - b) / rate).flatten() for a, b, rate in zip(before, values(solver), (1, 2, 1, 1), strict=True)]
    )
    assert float(moved.norm()) == pytest.approx(0.05 * limit / 3, rel=1e-4)


def test_a_seed_gives_the_same_run_and_another_seed_another(listing):
    net = net_message(listing, shuffle=True, dropout=0.4)

    def final(text: str) -> list[torch.Tensor]:
        solver, _ = made(solver_message(net, text))
        solver.step(5)
        return values(solver)

    first, again, other = final(""), final(""), final("random_seed: 4")
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first[::2], other[::2], strict=True))


def test_without_a_seed_runs_differ(listing):
    solvers = [made(solver_message(net_message(listing), "random_seed: -1"))[0] for _ in range(2)]
    assert not torch.equal(values(solvers[0])[0], values(solvers[1])[0])


def test_average_loss_is_the_mean_of_the_last_iterations(listing):
    solver, recorder = made(solver_message(net_message(listing), "average_loss: 3"))
    solver.step(7)
    own = losses(recorder)
    smoothed = [float(event.smoothed_loss) for event in recorder.of(events.IterationDone)]
    expected = [np.mean(own[max(0, i - 2) : i + 1]) for i in range(7)]
    np.testing.assert_allclose(smoothed, expected, rtol=1e-5)


def test_losses_stay_tensors_until_they_are_shown(listing):
    solver, recorder = made(solver_message(net_message(listing), "display: 4"))
    solver.step(6)
    assert all(isinstance(event.loss, torch.Tensor) for event in recorder.of(events.IterationDone))
    shown = recorder.of(events.IterationShown)
    assert [event.iteration for event in shown] == [0, 4]
    assert shown[1].num_iterations == 4
    assert shown[1].outputs == (events.OutputValue("loss", losses(recorder)[4], 1.0),)


def test_multistep_announces_its_steps(listing):
    solver, recorder = made(
        solver_message(net_message(listing), 'lr_policy: "multistep" gamma: 0.1 stepvalue: 2 stepvalue: 5')
    )
    assert solver.lr == pytest.approx(0.05)
    solver.step(6)
    assert recorder.of(events.StepAdvanced) == [events.StepAdvanced(2, 1), events.StepAdvanced(5, 2)]
    rates = [event.rate for event in recorder.of(events.IterationDone)]
    np.testing.assert_allclose(rates, [0.05, 0.05, 0.005, 0.005, 0.005, 0.0005], rtol=1e-6)
    assert solver.lr == pytest.approx(0.0005)


def test_a_parameter_without_gradient_still_decays(listing):
    """As in Caffe: its gradient is zero, to which the weight decay is added."""
    net = net_message(listing, head="")
    net.layer.extend(
        parse(
            """layer { name: "idle" type: "InnerProduct" bottom: "x" top: "idle"
                inner_product_param { num_output: 2 weight_filler { type: "constant" value: 1 } } }
            layer { name: "silence" type: "Silence" bottom: "idle" }""",
            caffe_pb2.NetParameter(),
            "t",
        ).layer
    )
    solver, _ = made(solver_message(net, "momentum: 0 weight_decay: 0.1"))
    solver.step(1)
    torch.testing.assert_close(solver.net.params["idle"][0].detach(), torch.full((2, 3), 1 - 0.05 * 0.1))


def test_frozen_layers_stay_and_their_neighbours_learn(listing):
    net = net_message(listing)
    for spec in net.layer[1].param:
        spec.lr_mult = 0
    solver, _ = made(solver_message(net))
    before = values(solver)
    solver.step(3)
    after = values(solver)
    assert [torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [True, True, False, False]


def test_keep_update_shows_what_was_subtracted(listing):
    solver, _ = made(solver_message(net_message(listing)), keep_update=True)
    solver.step(2)
    memory = [slot.value.grad.data_ptr() for slot in solver.slots]
    before = values(solver)
    solver.step(1)
    for old, slot in zip(before, solver.slots, strict=True):
        assert torch.equal(old - slot.value.grad, slot.value.detach())
    assert [slot.value.grad.data_ptr() for slot in solver.slots] == memory


def test_float64_nets_train_in_float64(listing):
    solver, recorder = made(solver_message(net_message(listing)), options=NetOptions(dtype=torch.float64))
    solver.step(2)
    assert {slot.value.dtype for slot in solver.slots} == {torch.float64}
    assert {history.dtype for slot in solver.slots for history in slot.history} == {torch.float64}
    assert recorder.of(events.IterationDone)[1].smoothed_loss.dtype == torch.float64


def test_a_net_without_loss_only_decays(listing):
    net = net_message(listing)
    del net.layer[-1]
    solver, recorder = made(solver_message(net, "momentum: 0 weight_decay: 1"))
    before = values(solver)
    solver.step(1)
    assert losses(recorder) == [0.0]
    torch.testing.assert_close(values(solver)[2], before[2] * (1 - 0.05))


def test_callbacks_are_called_around_the_passes(listing):
    solver, recorder = made(solver_message(net_message(listing), "display: 1"))
    seen = []

    class Callback:
        def on_start(self):
            seen.append(("start", all(slot.value.grad is None for slot in solver.slots)))

        def on_gradients_ready(self):
            seen.append(("ready", all(slot.value.grad is not None for slot in solver.slots)))
            assert not recorder.of(events.IterationDone)

    solver.callbacks.append(Callback())
    solver.step(1)
    assert seen == [("start", True), ("ready", True)]


def test_updates_are_told_the_iteration_before_its_last_pass(listing):
    solver, _ = made(solver_message(net_message(listing, batch=2), "iter_size: 2 test_interval: 2 test_iter: 1"))
    calls = []

    class Updates:
        def begin(self):
            calls.append("begin")

        def start(self, hyper):
            calls.append(("start", hyper.iteration, round(hyper.rate, 6), solver.net.draws.clock))

        def finish(self):
            calls.append("finish")

        def drain(self):
            calls.append("drain")

    solver.updates = Updates()
    solver.step(2)
    assert calls == [
        "drain",
        *("begin", ("start", 0, 0.05, 1), "finish"),
        *("begin", ("start", 1, 0.05, 3), "finish"),
    ]


# -- the whole run --------------------------------------------------------------------------------------------------
def test_solve_reports_in_caffes_order(listing, tmp_path):
    text = f"""max_iter: 4 display: 2 test_interval: 2 test_iter: 3 snapshot: 3 snapshot_prefix: "{tmp_path / "s"}"
               snapshot_after_train: true"""
    solver, recorder = made(solver_message(net_message(listing), text))
    recorder.all.clear()
    solver.solve()
    names = [type(event).__name__ for event in recorder.all]
    tested = ["TestStarted", "TestDone"]
    shown, done = ["IterationShown", "RateShown", "IterationDone"], ["IterationDone"]
    saved = ["SnapshotStarted", "SnapshotWritten"]
    assert names == [
        *["SolvingStarted", *tested, *shown, *done, *tested, *shown, *saved, *done],
        *[*saved, "FinalLoss", *tested, "SolvingDone"],
    ]
    assert [event.iteration for event in recorder.of(events.SnapshotWritten)] == [3, 4]
    assert recorder.all[-1] == events.SolvingDone(4, stopped_early=False)


def test_no_second_snapshot_where_the_interval_has_just_written_one(listing, tmp_path):
    text = f'max_iter: 4 snapshot: 2 snapshot_prefix: "{tmp_path / "s"}" snapshot_after_train: true'
    solver, recorder = made(solver_message(net_message(listing), text))
    solver.solve()
    assert [event.iteration for event in recorder.of(events.SnapshotWritten)] == [2, 4]


def test_the_final_loss_is_of_the_batch_that_comes_next(listing):
    solver, recorder = made(solver_message(net_message(listing), "max_iter: 2 display: 1"))
    solver.solve()
    other, other_events = made(solver_message(net_message(listing)))
    other.step(3)
    assert recorder.of(events.FinalLoss) == [events.FinalLoss(2, losses(other_events)[2])]


def test_stop_ends_after_the_iteration_with_a_snapshot(listing, tmp_path):
    text = f'max_iter: 9 display: 1 snapshot_prefix: "{tmp_path / "s"}" snapshot_after_train: true'
    solver, recorder = made(solver_message(net_message(listing), text))
    solver.action = lambda: Action.STOP if solver.iter == 3 else Action.NONE
    solver.solve()
    assert solver.iter == 3
    assert [event.iteration for event in recorder.of(events.SnapshotWritten)] == [3]
    assert recorder.of(events.FinalLoss) == []
    assert recorder.all[-1] == events.SolvingDone(3, stopped_early=True)
    solver.action = lambda: Action.NONE
    solver.solve()
    assert recorder.all[-1] == events.SolvingDone(9, stopped_early=False)


def test_a_snapshot_can_be_asked_for(listing, tmp_path):
    solver, recorder = made(solver_message(net_message(listing), f'snapshot_prefix: "{tmp_path / "s"}"'))
    asked = iter([Action.NONE, Action.SNAPSHOT, Action.NONE])
    solver.action = lambda: next(asked)
    solver.step(3)
    assert [event.iteration for event in recorder.of(events.SnapshotWritten)] == [2]
    assert solver.iter == 3
