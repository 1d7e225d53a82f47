"""Solver: trains a net as a SolverParameter describes.

    solver = Solver("solver.prototxt", listeners=[LogWriter(sys.stderr)])
    solver.solve()                      # to max_iter, with tests and snapshots on the way
    solver.step(100)                    # or a number of iterations by hand
    solver.restore("lenet_iter_500.solverstate")

One iteration:

    g = Σ over iter_size batches of ∂loss/∂w → clip_gradients → rule (÷ iter_size, decay, its formula) → w

The loop computes, tells its listeners what happens (`events.py`) and prints nothing. Losses stay on the device until an
iteration is displayed. Attributes meant to be exchanged from outside:

    run         how a batch is computed (`passes.py`)
    test_runs   the same for each test net
    updates     who applies gradients (`updates.py`)
    team        the other workers, if this one is not alone (`team.py`)
    action      tells what somebody asks for, after every iteration and before every test batch (`action.py`)
    callbacks   called around the passes of an iteration
    stateful    by name: what else goes into a snapshot's sidecar (`continuation.py`)
    writer      writes the snapshots that fall due while training goes on (`background.py`); None: training waits
    keep        how many snapshots stay: older ones are removed when a new one is whole; 0: all
    job         name of the job that snapshots belong to
"""

from __future__ import annotations

import fnmatch
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from torch import Tensor

from poseidon.errors import SnapshotError, SolverError
from poseidon.net.net import Net
from poseidon.net.sharing import share_params
from poseidon.net.stepwise import Stepwise
from poseidon.solver import checkpoint, events, nets, snapshot
from poseidon.solver.action import Action, no_action
from poseidon.solver.background import BackgroundWriter, Outcome
from poseidon.solver.continuation import Stateful
from poseidon.solver.disk import Disk
from poseidon.solver.passes import FusedPass, Pass, PassResult, StepwisePass, separate_gradients
from poseidon.solver.policies import Rate, check_policy, rate_of
from poseidon.solver.rules import Hyper, rule_for
from poseidon.solver.smoothing import LossWindow
from poseidon.solver.team import Alone, Team
from poseidon.solver.testing import output_values, run_test
from poseidon.solver.updates import LocalUpdates, Updates
from poseidon.spec import caffe_pb2, read_solver, upgrade_solver


class Callback(Protocol):
    """Called in every iteration: before the first pass, and when all gradients are there."""

    def on_start(self) -> None: ...

    def on_gradients_ready(self) -> None: ...


class Solver:
    """The train net, its test nets, and the loop over them.

    source        path of a solver prototxt, or a SolverParameter
    options       how the nets compute: device, precision, memory order
    listeners     get every event, from the first one on
    keep_update   leave in each parameter's gradient what was subtracted from it, as Caffe does with the diff
    writes        false where another worker writes the snapshots: this one's disk need not have a place for them
    """

    def __init__(
        self,
        source: str | Path | caffe_pb2.SolverParameter,
        *,
        options: nets.NetOptions | None = None,
        listeners: Iterable[events.Listener] = (),
        keep_update: bool = False,
        disk: Disk | None = None,
        writes: bool = True,
    ) -> None:
        self.param = _param_of(source)
        self.listeners = list(listeners)
        self.publish(events.SolverStarted(self.param))
        _check(self.param)
        self.rule = rule_for(self.param)
        self.disk = disk or Disk()
        self._prepare_snapshots(writes)
        self.seed = self.param.random_seed if self.param.random_seed >= 0 else secrets.randbits(62)
        options = options or nets.NetOptions()
        self.net = self._build(nets.train_net(self.param), None, options)
        self.test_nets = [self._build(choice, i, options) for i, choice in enumerate(nets.test_nets(self.param))]
        self.slots = [
            self.rule.slot(f"{entry.layer}/{entry.index}", entry.value, entry.rate, entry.decay)
            for entry in self.net.learnable
        ]
        self.keep_update = keep_update or self.param.snapshot_diff
        self.updates: Updates = LocalUpdates(
            self.rule, self.slots, clip_limit=self.param.clip_gradients, keep_update=self.keep_update
        )
        self.team: Team = Alone()
        self.run: Pass = FusedPass(self.net)
        self.test_runs: list[Pass] = [FusedPass(net) for net in self.test_nets]
        self.action: Callable[[], Action] = no_action
        self.callbacks: list[Callback] = []
        self.stateful: dict[str, Stateful] = {}
        self.writer: BackgroundWriter | None = None
        self.keep = 0
        self.job = ""
        self.has_yielded = False
        self.iter = 0
        self.current_step = 0
        self.window = LossWindow(self.param.average_loss)
        self._window_continues = False
        self._stop_requested = False
        self._shown_at: tuple[int, float] = (0, 0.0)
        self.publish(events.SolverReady())

    @property
    def lr(self) -> float:
        """The rate the next iteration will use."""
        return rate_of(self.param, self.iter, self.current_step).value

    def publish(self, event: events.Event) -> None:
        for listener in self.listeners:
            listener(event)

    # -- training ---------------------------------------------------------------------------------------------------
    def solve(self, resume: str | Path | None = None) -> None:
        """Trains up to max_iter, from a snapshot if one is given; at the end one more snapshot, loss and test."""
        param = self.param
        self.publish(events.SolvingStarted(self.net.name, param.lr_policy))
        self._stop_requested = False
        if resume is not None:
            self.publish(events.RestoreStarted(str(resume)))
            self.restore(resume)
        self.step(param.max_iter - self.iter)
        is_due = param.snapshot_after_train or self.has_yielded
        if is_due and not (param.snapshot and self.iter % param.snapshot == 0):
            self.snapshot()
        self._finish_writing()
        if not self._stop_requested:
            self._show_final()
        self.publish(events.SolvingDone(self.iter, stopped_early=self._stop_requested))

    def step(self, num_iterations: int = 1) -> None:
        """Trains for a number of iterations, with the tests and snapshots that fall into them."""
        param = self.param
        stop_at = self.iter + num_iterations
        if not self._window_continues:
            self.window = LossWindow(param.average_loss)
        self._window_continues = False
        self._shown_at = (self.iter, time.perf_counter())
        while self.iter < stop_at:
            if param.test_interval and self.iter % param.test_interval == 0:
                if self.iter > 0 or param.test_initialization:
                    self.test_all()
                if self._stop_requested:
                    break
            self._iterate()
            request = self.team.agree(self.action(), testing=False)
            self._report(self.writer.over() if self.writer is not None else [])
            if (param.snapshot and self.iter % param.snapshot == 0) or request is Action.SNAPSHOT:
                self._save()
            if request in (Action.STOP, Action.YIELD):
                self._stop(request)
                break

    def _iterate(self) -> None:
        for callback in self.callbacks:
            callback.on_start()
        param, iteration = self.param, self.iter
        is_shown = bool(param.display) and iteration % param.display == 0
        rate = rate_of(param, iteration, self.current_step)
        self._clear_gradients()
        self.updates.begin()
        run = self._telling(self.run, self.net) if is_shown and param.debug_info else self.run
        loss, result = self._accumulate(run, Hyper.of(param, iteration, rate.value))
        smoothed = self.window.add(loss)
        if is_shown:
            self._show(smoothed, result)
        for callback in self.callbacks:
            callback.on_gradients_ready()
        self._update(rate)
        self.publish(events.IterationDone(iteration, loss, smoothed, rate.value))

    def apply_update(self) -> None:
        """One update from the gradients as they are, whoever has computed them; counts as an iteration."""
        rate = rate_of(self.param, self.iter, self.current_step)
        self.updates.begin()
        self.updates.start(Hyper.of(self.param, self.iter, rate.value))
        self._update(rate)

    def _update(self, rate: Rate) -> None:
        param, iteration = self.param, self.iter
        if param.lr_policy == "multistep" and rate.current_step != self.current_step:
            self.publish(events.StepAdvanced(iteration, rate.current_step))
        self.current_step = rate.current_step
        if param.display and iteration % param.display == 0:
            self.publish(events.RateShown(iteration, rate.value))
        clipping = self.updates.finish()
        if clipping is not None:
            self.publish(events.GradientsClipped(iteration, clipping.norm, clipping.limit, clipping.factor))
        self.iter += 1

    def _accumulate(self, run: Pass, hyper: Hyper) -> tuple[Tensor, PassResult]:
        """The mean loss of iter_size passes, and the last one's result; gradients add up."""
        num_passes = self.param.iter_size
        losses = []
        for remaining in reversed(range(num_passes)):
            if remaining == 0:
                self.updates.start(hyper)
            result = run(backward=True)
            separate_gradients(slot.value for slot in self.slots)
            losses.append(result.loss)
        total = sum(losses[1:], start=losses[0])
        return (total if num_passes == 1 else total / num_passes), result

    def _clear_gradients(self) -> None:
        for slot in self.slots:
            if self.keep_update and slot.value.grad is not None:
                slot.value.grad.zero_()  # whoever looks at this memory goes on seeing the gradient
            else:
                slot.value.grad = None

    # -- looking ----------------------------------------------------------------------------------------------------
    def _show(self, smoothed: Tensor, result: PassResult) -> None:
        names, values = list(result.outputs), list(result.outputs.values())
        mean, *means = self.team.mean([smoothed, *values])
        loss = float(mean)  # waits for the device, so the time after it is the time of finished work
        since, started = self._shown_at
        now = time.perf_counter()
        self._shown_at = (self.iter, now)
        outputs = output_values(self.net, dict(zip(names, means, strict=True)))
        self.publish(
            events.IterationShown(self.iter, loss, now - started, self.iter - since, self.param.display, outputs)
        )

    def _show_final(self) -> None:
        """What the last update did, for display: one more forward pass, and the tests that are due."""
        param = self.param
        if param.display and self.iter % param.display == 0:
            self.updates.drain()
            smoothed = self.window.add(self.run(backward=False).loss)
            (mean,) = self.team.mean([smoothed])
            self.publish(events.FinalLoss(self.iter, float(mean)))
        if param.test_interval and self.iter % param.test_interval == 0:
            self.test_all()

    def _telling(self, run: Pass, net: Net) -> StepwisePass:
        """The same pass, telling about every blob, as debug_info asks."""
        return StepwisePass(run.stepwise if isinstance(run, StepwisePass) else Stepwise(net), self.publish)

    # -- testing ----------------------------------------------------------------------------------------------------
    def test_all(self) -> None:
        """Runs every test net over its test_iter batches."""
        for index in range(len(self.test_nets)):
            if not self._stop_requested:
                self.test(index)

    def test(self, index: int) -> None:
        """Runs one test net over its batches and publishes the means of its outputs."""
        self.updates.drain()
        self.team.level()
        self.publish(events.TestStarted(self.iter, index))
        net, run = self.test_nets[index], self.test_runs[index]
        if self.param.debug_info:
            run = self._telling(run, net)
        scores = run_test(
            net,
            run,
            self.param.test_iter[index],
            self._answer_requests,
            compute_loss=self.param.test_compute_loss,
            team=self.team,
        )
        if scores is None:
            self.publish(events.TestInterrupted(self.iter, index))
        else:
            self.publish(events.TestDone(self.iter, index, scores.loss, scores.outputs))

    def _answer_requests(self) -> bool:
        """Does what is asked for between two test batches; True to stop."""
        while (request := self.team.agree(self.action(), testing=True)) is not Action.NONE:
            if request in (Action.STOP, Action.YIELD):
                self._stop(request)
                break
            self._save()
        return self._stop_requested

    def _stop(self, request: Action) -> None:
        self._stop_requested = True
        self.has_yielded = request is Action.YIELD

    # -- snapshots --------------------------------------------------------------------------------------------------
    def snapshot(self) -> snapshot.SnapshotFiles:
        """Writes weights and state; a kill in the middle leaves the snapshots before it as they were."""
        self._finish_writing()
        self.updates.drain()
        self.team.level()
        return checkpoint.save(self)

    def _save(self) -> None:
        """Takes a snapshot of this moment; if there is a writer, training does not wait until it is on the disk."""
        if self.writer is None:
            self.snapshot()
            return
        self.updates.drain()
        self.team.level()
        self._report(self.writer.wait())  # one at a time
        checkpoint.save_copy(self, self.writer)

    def _report(self, outcomes: list[Outcome]) -> None:
        for done in outcomes:
            if done.problem:
                self.publish(events.SnapshotFailed(done.iteration, done.problem))
            else:
                self.publish(events.SnapshotWritten(done.iteration, done.files.model, done.files.state))

    def _finish_writing(self) -> None:
        """Returns when nothing is being written. What stands now must not get lost: if that failed, it is an error."""
        if self.writer is not None:
            outcomes = self.writer.wait()
            self._report(outcomes)
            for done in outcomes:
                if done.problem and done.iteration == self.iter:
                    raise SnapshotError(done.problem)

    def restore(self, path: str | Path) -> None:
        """Goes on from a .solverstate, of Caffe or of ours; nothing changes unless all of it fits."""
        self.updates.drain()
        checkpoint.restore(self, path)

    def continue_window(self, window: LossWindow) -> None:
        """The next `step` goes on smoothing with this window instead of a fresh one."""
        self.window, self._window_continues = window, True

    # -- building ---------------------------------------------------------------------------------------------------
    def _prepare_snapshots(self, writes: bool) -> None:
        param = self.param
        if param.snapshot and not param.HasField("snapshot_prefix"):
            raise SolverError("a solver with `snapshot` needs a snapshot_prefix, got none")
        if writes:
            if param.snapshot:
                snapshot.check_writable(param.snapshot_prefix)
            snapshot.clean(param.snapshot_prefix)

    def _build(self, choice: nets.NetChoice, test_index: int | None, options: nets.NetOptions) -> Net:
        source = choice.read()
        self.publish(events.NetPlanned(test_index, choice.origin, source, choice.state(source)))
        seed = self.seed if test_index is None else nets.test_seed(self.seed, test_index)
        net = choice.build(source, seed, options)
        self.publish(events.NetBuilt(test_index, net))
        # A test net may lack a layer of the train net; that a pattern is misspelt, the train net has told by then.
        renewed = [pattern for pattern in options.renew if test_index is None or fnmatch.filter(net.layers, pattern)]
        for path in nets.weights_named(self.param):
            net.load(path, skip=renewed)
            self.publish(events.WeightsLoaded(path))
        if test_index is not None:
            share_params(net, self.net)
        return net


def _param_of(source: str | Path | caffe_pb2.SolverParameter) -> caffe_pb2.SolverParameter:
    if not isinstance(source, caffe_pb2.SolverParameter):
        return read_solver(source)
    param = caffe_pb2.SolverParameter()
    param.CopyFrom(source)
    upgrade_solver(param)
    return param


def _check(param: caffe_pb2.SolverParameter) -> None:
    for name in ("average_loss", "iter_size"):
        if getattr(param, name) < 1:
            raise SolverError(f"{name} must be at least 1, got {getattr(param, name)}")
    check_policy(param)
