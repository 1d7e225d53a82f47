"""Gradients that come in unusual ways: not at all, as views of one memory, in another layout, from fewer rows than
planned, or from passes that nobody asked for. Several workers must still equal one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from poseidon.comm.events import WaitStarted
from poseidon.comm.exchange import Wiring
from poseidon.comm.part import members_of
from poseidon.comm.ring import Ring
from poseidon.errors import PlanError
from poseidon.net import Net
from poseidon.net.layers.inner_product import InnerProduct
from poseidon.plan import CommPlan, Override, Scheme, Send, Unit
from poseidon.solver import NetOptions, Solver
from poseidon.solver.passes import Pass, PassResult
from poseidon.solver.updates import LocalUpdates
from poseidon.transport import Transport
from poseidon.transport.inproc import run_workers
from tests.comm.nets import DEEP, LENET, MLP, WORDS, Case
from tests.comm.training import (
    Fed,
    assert_replicas,
    join,
    plain_request,
    plan_of,
    relative_distance,
    solver_of,
    values_of,
)
from tests.comm.watching import HoldingTransport, Log

ALL = (Scheme.RING, Scheme.SERVER, Scheme.FACTORS, Scheme.FACTOR_SERVER)
STEPS = 6

BatchAt = Callable[[int], dict[str, Tensor]]
Wrap = Callable[[Net, Pass], Pass]


def as_is(net: Net, run: Pass) -> Pass:
    return run


def one(case: Case, size: int, wrap: Wrap = as_is, kind: str = "Adam") -> list[Tensor]:
    solver = solver_of(case, kind, case.batch * size)
    solver.run = wrap(solver.net, Fed(solver.net, lambda clock: case.batch_of(clock, size)))
    solver.step(STEPS)
    return values_of(solver)


def several(case: Case, plan: CommPlan, wrap: Wrap = as_is, kind: str = "Adam", *, averages: bool = True):
    def work(transport: Transport) -> list[Tensor]:
        solver = solver_of(case, kind, case.batch)
        with closing(join(case, plan, transport, solver, averages=averages)) as worker:
            solver.run = wrap(solver.net, solver.run)
            solver.step(STEPS)
            worker.updates.drain()
        return values_of(solver)

    values = run_workers(plan.cluster.num_workers, work)
    assert_replicas(values)
    return values[0]


def assert_equal(values: list[Tensor], expected: list[Tensor]) -> None:
    for mine, theirs in zip(values, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-12)


# -- no gradient ------------------------------------------------------------------------------------------------------
class Partly:
    """Of every three passes one goes back from the hidden layer only, and one not at all."""

    def __init__(self, net: Net, run: Pass) -> None:
        assert isinstance(run, Fed)
        self._net, self._run = net, run

    def __call__(self, *, backward: bool) -> PassResult:
        clock = self._net.draws.clock
        if clock % 3 == 0:
            return self._run(backward=backward)
        outputs = self._net(self._run.batch_at(clock), keep=["fc7"])
        if clock % 3 == 1:
            outputs["fc7"].square().mean().backward()
        return PassResult(torch.zeros(()), {})


@pytest.mark.parametrize("scheme", ALL)
def test_parameters_that_a_pass_does_not_reach_get_no_gradient(scheme):
    assert_equal(several(DEEP, plan_of(DEEP, 3, plain_request(scheme=scheme)), Partly), one(DEEP, 3, Partly))


class Idle:
    """Every second pass reads no parameter."""

    def __init__(self, net: Net, run: Pass) -> None:
        self._net, self._run = net, run

    def __call__(self, *, backward: bool) -> PassResult:
        if self._net.draws.clock % 2 == 0:
            return self._run(backward=backward)
        self._net.draws.clock += 1
        return PassResult(torch.zeros(()), {})


@pytest.mark.parametrize("scheme", ALL)
def test_what_nobody_has_read_is_waited_for_before_its_next_gradient(scheme):
    plan = plan_of(DEEP, 2, plain_request(scheme=scheme))
    everything = range(len(plan.units))

    def work(transport: Transport) -> list[Tensor]:
        released, log = threading.Event(), Log()
        solver = solver_of(DEEP, "Adam", DEEP.batch)
        worker = join(DEEP, plan, HoldingTransport(transport, plan, everything, released), solver, listener=log)
        solver.run = Idle(solver.net, solver.run)
        solver.step(1)
        releaser = threading.Thread(target=lambda: (log.wait_for(lambda e: bool(log.of(WaitStarted))), released.set()))
        releaser.start()
        solver.step(STEPS - 1)
        worker.updates.drain()
        releaser.join()
        worker.close()
        return values_of(solver)

    values = run_workers(2, work)
    assert_replicas(values)
    assert_equal(values[0], one(DEEP, 2, Idle))


# -- gradients that share memory --------------------------------------------------------------------------------------
SHARING = Case(
    "sharing",
    lambda n: (
        """
        layer { name: "t" type: "Input" top: "t" input_param { shape { dim: 4 dim: 3 } } }
        layer { name: "a" type: "Parameter" top: "a" parameter_param { shape { dim: 12 } } }
        layer { name: "b" type: "Parameter" top: "b" parameter_param { shape { dim: 4 dim: 3 } } }
        layer { name: "c" type: "Parameter" top: "c" parameter_param { shape { dim: 2 dim: 6 } } }
        layer { name: "ra" type: "Reshape" bottom: "a" top: "ra" reshape_param { shape { dim: 4 dim: 3 } } }
        layer { name: "rc" type: "Reshape" bottom: "c" top: "rc" reshape_param { shape { dim: 4 dim: 3 } } }
        layer { name: "sum" type: "Eltwise" bottom: "ra" bottom: "b" bottom: "rc" top: "s" }
        layer { name: "loss" type: "EuclideanLoss" bottom: "s" bottom: "t" top: "loss" }"""
    ),
    lambda rng, n: {"t": np.arange(12.0).reshape(4, 3)},
)


@pytest.mark.parametrize("settings", ["", "iter_size: 2", "clip_gradients: 0.5"])
@pytest.mark.parametrize("scheme", [None, Scheme.RING, Scheme.SERVER])
def test_gradients_that_share_memory_are_kept_apart(scheme, settings):
    """What a sum hands back to its three terms is one tensor; each term decays by itself. None: one worker alone."""
    case = replace(SHARING, settings=settings)

    def same(net: Net, run: Pass) -> Pass:
        return Fed(net, lambda clock: case.batch_of(clock, 1))

    target, value, velocity = np.arange(12.0), np.zeros(12), np.zeros(12)
    for _ in range(STEPS):
        gradient = (3 * value - target) / 4
        num_passes = 2 if "iter_size" in settings else 1
        if "clip" in settings:  # the norm is over all three
            gradient *= min(1.0, 0.5 / np.sqrt(3 * (gradient**2).sum()))
        velocity = 0.9 * velocity + 0.05 * (num_passes * gradient / num_passes + 0.01 * value)
        value = value - velocity
    if scheme is None:
        found = one(case, 1, same, "SGD")
    else:
        found = several(case, plan_of(case, 2, plain_request(scheme=scheme)), same, "SGD")
    for parameter in found:
        np.testing.assert_allclose(parameter.numpy().reshape(-1), value, rtol=1e-7)


# -- layouts ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("wire", ["fp32", "bf16"])
@pytest.mark.parametrize("scheme", ALL)
@pytest.mark.parametrize("fuse_bytes", [0.0, 1e6])
def test_parameters_in_nhwc_order(scheme, fuse_bytes, wire):
    plan = plan_of(LENET, 2, plain_request(scheme=scheme, fuse_bytes=(fuse_bytes,), wire=wire))
    param = solver_of(LENET, "SGD", LENET.batch).param

    def work(transport: Transport) -> list[Tensor]:
        solver = Solver(param, options=NetOptions(dtype=torch.float64, channels_last=True))
        worker = join(LENET, plan, transport, solver)
        solver.step(STEPS)
        worker.updates.drain()
        worker.close()
        return values_of(solver)

    values = run_workers(2, work)
    assert_replicas(values)
    allowed = 1e-10 if wire == "fp32" else 1e-3
    assert relative_distance(values[0], one(LENET, 2, kind="SGD")) < allowed


def test_a_gradient_is_copied_only_where_it_must_be():
    """A 1 × 1 convolution's gradient may have other strides along its axes of one element: the memory is the same."""
    parameter = nn.Parameter(torch.zeros(4, 3, 1, 1))
    unit = Unit(0, ("p/0",), ((4, 3, 1, 1),), 12, Scheme.RING, 0, None, 0, 0.0, "")
    send = Send(0, 0, 12)

    def offered(transport: Transport, grad: Tensor) -> Tensor:
        exchange = Ring(Wiring(unit, members_of([("p/0", parameter)]), transport, [send]))
        exchange.offer(exchange.members[0], grad)
        return exchange.memory(send)

    def work(transport: Transport) -> None:
        same = torch.empty_strided((4, 3, 1, 1), (3, 1, 3, 3)).fill_(1)
        assert offered(transport, same).data_ptr() == same.data_ptr()
        turned = torch.arange(12.0).view(3, 4).t().view(4, 3, 1, 1)
        assert offered(transport, turned).tolist() == turned.flatten().tolist()
        shared = torch.arange(12.0).view(4, 3, 1, 1)
        other = shared.view(12)
        assert offered(transport, shared).data_ptr() != other.data_ptr()

    run_workers(1, work)


# -- rows of factors --------------------------------------------------------------------------------------------------
FILTERED = Case(
    "filtered",
    lambda n: (
        f"""
        layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: {n} dim: 5 }} }} }}
        layer {{ name: "pick" type: "Input" top: "pick" input_param {{ shape {{ dim: {n} dim: 1 }} }} }}
        layer {{ name: "filter" type: "Filter" bottom: "x" bottom: "pick" top: "f" propagate_down: true
                 propagate_down: false }}
        layer {{ name: "fc1" type: "InnerProduct" bottom: "f" top: "h" inner_product_param {{ num_output: 6
                 weight_filler {{ type: "xavier" }} bias_filler {{ type: "constant" value: 0.1 }} }} }}
        layer {{ name: "tanh" type: "TanH" bottom: "h" top: "a" }}
        layer {{ name: "fc2" type: "InnerProduct" bottom: "a" top: "y" inner_product_param {{ num_output: 2
                 weight_filler {{ type: "xavier" }} bias_filler {{ type: "constant" value: 0.3 }} }} }}
        layer {{ name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 0.1
                 reduction_param {{ operation: SUMSQ }} }}"""
    ),
    lambda rng, n: {"x": rng.standard_normal((n, 5)), "pick": (rng.random_sample((n, 1)) < 0.5).astype(np.float64)},
    batch=3,
)


@pytest.mark.parametrize("scheme", ALL)
def test_workers_may_have_different_numbers_of_rows(scheme):
    """A Filter lets through as many samples as it likes; sums over samples do not care, if workers are summed too."""
    clocks = [FILTERED.share_of(clock, rank, 3)["pick"].sum() for clock in range(STEPS) for rank in range(3)]
    assert len(set(map(float, clocks))) > 2
    plan = plan_of(FILTERED, 3, plain_request(scheme=scheme))
    assert_equal(several(FILTERED, plan, averages=False), one(FILTERED, 3))


@pytest.mark.parametrize("scheme", [Scheme.FACTORS, Scheme.FACTOR_SERVER])
def test_more_rows_than_planned_are_refused(scheme):
    plan = plan_of(MLP, 2, plain_request(scheme=scheme))

    def grown(net: Net, run: Pass) -> Pass:
        return Fed(net, lambda clock: MLP.batch_of(clock, 1 if clock < 2 else 3))

    with pytest.raises(PlanError, match=r"fc./0 travels as factors of 2 rows .* got 6.*give it the scheme ring"):
        several(MLP, plan, grown)


# -- passes that nobody asked for -------------------------------------------------------------------------------------
class Curious:
    """Goes over each batch once more before and after, and looks at the gradients."""

    def __init__(self, net: Net, run: Pass) -> None:
        self._net, self._run = net, run

    def __call__(self, *, backward: bool) -> PassResult:
        return self._run(backward=backward)

    def look(self) -> None:
        clock = self._net.draws.clock
        self._run(backward=True)
        self._net.draws.clock = clock


@pytest.mark.parametrize("scheme", [None, *ALL, Scheme.ROWS])
@pytest.mark.parametrize("case", [MLP, WORDS], ids=lambda case: case.name)
def test_passes_between_iterations_change_nothing_and_give_ordinary_gradients(scheme, case):
    plan = plan_of(case, 2, plain_request(scheme=scheme))

    def work(transport: Transport) -> list[Tensor]:
        solver = solver_of(case, "Adam", case.batch)
        worker = join(case, plan, transport, solver)
        curious = Curious(solver.net, solver.run)
        for _ in range(STEPS):
            curious.look()
            dense = [entry.value.grad for entry in solver.net.learnable]
            assert all(grad is not None and not grad.is_sparse for grad in dense)
            solver.step(1)
        worker.updates.drain()
        worker.close()
        return values_of(solver)

    values = run_workers(2, work)
    assert_replicas(values)
    assert_equal(values[0], one(case, 2))


def test_an_iteration_that_failed_in_an_early_pass_can_be_repeated():
    """With iter_size 2: the first pass breaks down after it has handed out factors on all workers."""
    case = replace(MLP, settings="iter_size: 2")
    plan = plan_of(case, 2, plain_request(scheme=Scheme.FACTORS))

    def work(transport: Transport) -> list[Tensor]:
        solver = solver_of(case, "Adam", case.batch)
        worker = join(case, plan, transport, solver)
        run = solver.run

        def broken(*, backward: bool) -> PassResult:
            clock = solver.net.draws.clock
            run(backward=backward)
            solver.net.draws.clock = clock
            raise RuntimeError("a page of the batch is missing")

        solver.step(2)
        solver.run = broken
        with pytest.raises(RuntimeError, match="page"):
            solver.step(1)
        solver.run = run
        solver.step(STEPS - 2)
        worker.updates.drain()
        worker.close()
        return values_of(solver)

    values = run_workers(2, work)
    assert_replicas(values)
    assert_equal(values[0], one(case, 2))


def test_after_closing_the_net_is_as_it_was():
    plan = plan_of(MLP, 2, plain_request(overrides=(Override("fc1", Scheme.FACTORS),)))

    def work(transport: Transport) -> None:
        solver = solver_of(MLP, "SGD", MLP.batch)
        worker = join(MLP, plan, transport, solver)
        worker.close()
        for layer in solver.net.layers.values():
            assert layer.gate is None
            if isinstance(layer, InnerProduct):
                assert layer.factor_tap is None
        solver.updates = LocalUpdates(solver.rule, solver.slots)
        before = values_of(solver)
        solver.step(1)
        assert not any(torch.equal(mine, old) for mine, old in zip(values_of(solver), before, strict=True))

    run_workers(2, work)
