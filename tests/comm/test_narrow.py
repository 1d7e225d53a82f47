"""bf16 and fp16 wires: replicas keep the same bits, what rounding takes away comes later, and a snapshot keeps it.

Bytes are counted in test_bytes.py."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from poseidon.comm import Exchange, Part, make_exchanges
from poseidon.comm.exchange import Wiring
from poseidon.comm.narrow import ErrorFeedback, NarrowRing, NarrowServer
from poseidon.comm.part import members_of
from poseidon.errors import SnapshotError
from poseidon.plan import Override, Scheme, Send, Unit
from poseidon.run.distribute import distribute
from poseidon.transport import Transport
from poseidon.transport.inproc import run_workers
from tests.comm.nets import DEEP, LENET, MLP
from tests.comm.training import (
    Fed,
    assert_replicas,
    join,
    one_worker,
    plain_request,
    plan_of,
    relative_distance,
    solver_of,
    train,
    values_of,
)

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SCHEMES = (Scheme.RING, Scheme.SERVER, Scheme.FACTOR_SERVER)


# -- whole trainings --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("wire", ["bf16", "fp16"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_replicas_keep_the_same_bits_near_the_exact_trajectory(scheme, wire, size):
    request = plain_request(scheme=scheme, wire=wire, chunk_bytes=(240.0,))
    values = train(MLP, "Adam", plan_of(MLP, size, request), dtype=torch.float32)
    assert_replicas(values)
    distance = relative_distance(values[0], one_worker(MLP, "Adam", size))
    assert 0 < distance < 0.02


@pytest.mark.parametrize("scheme", SCHEMES)
def test_behind_a_barrier_too(scheme):
    case = replace(LENET, settings="clip_gradients: 0.2")
    values = train(case, "SGD", plan_of(case, 3, plain_request(scheme=scheme, wire="bf16")))
    assert_replicas(values)
    assert relative_distance(values[0], one_worker(case, "SGD", 3)) < 0.01


@pytest.mark.parametrize("wire", ["bf16", "fp16"])
@pytest.mark.parametrize("scheme", [Scheme.RING, Scheme.SERVER])
def test_training_converges_as_without(scheme, wire):
    """One batch learned by heart; the loss of the narrow run ends beside that of the exact one."""

    def last_loss(wire: str) -> float:
        plan = plan_of(DEEP, 2, plain_request(scheme=scheme, wire=wire, fuse_bytes=(1e6,)), torch.float32)

        def work(transport: Transport) -> float:
            solver = solver_of(DEEP, "SGD", DEEP.batch, torch.float32)
            worker = join(DEEP, plan, transport, solver)
            solver.run = Fed(solver.net, lambda clock: DEEP.share_of(0, transport.rank, 2))
            solver.step(40)
            worker.updates.drain()
            loss = float(solver.run(backward=False).loss)
            worker.close()
            return loss

        return sum(run_workers(2, work)) / 2

    exact, narrow = last_loss("fp32"), last_loss(wire)
    assert exact < 0.5
    assert narrow == pytest.approx(exact, rel=0.1, abs=0.01)


# -- one unit, by hand ------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Bench:
    """One worker's exchange of a unit with two parameters, driven without a scheduler."""

    exchange: Exchange
    parameters: list[nn.Parameter]
    sends: list[Send]

    def iterate(self, grads: list[Tensor], rate: float) -> None:
        """w ← w − rate · Σ grads, as the exchange brings them."""
        for member, grad in zip(self.exchange.members, grads, strict=True):
            self.exchange.offer(member, grad.clone())
        tokens = [self.exchange.begin(send) for send in self.sends]
        for send, token in zip(self.sends, tokens, strict=True):
            parts: list[Part] = self.exchange.reduced(send, token)
            for part in parts:
                part.region.of(part.member.value).sub_(part.grad, alpha=rate)
            self.exchange.spread(send)
        self.exchange.drop()


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bench(kind: type, transport: Transport, narrow: torch.dtype, dtype: torch.dtype = torch.float32) -> Bench:
    shapes = ((5, 3), (4,))
    parameters = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]
    members = members_of([(f"p/{i}", parameter) for i, parameter in enumerate(parameters)])
    unit = Unit(0, ("p/0", "p/1"), shapes, 19, Scheme.RING, 0, None, 0, 0.0, "")
    sends = [Send(0, 0, 11), Send(0, 11, 19)]
    return Bench(kind(Wiring(unit, members, transport, sends), narrow), parameters, sends)


@pytest.mark.parametrize("kind", [NarrowRing, NarrowServer])
@pytest.mark.parametrize("wire", ["bf16", "fp16"])
def test_nothing_is_lost_only_late(kind, wire):
    """The same gradients in every iteration, which a narrow number cannot hold.

    What is owed at any time is at most half an ulp of one gradient of each worker and half of one sum. Without feedback
    the error of every iteration would be added to the last.
    """
    size, rounds = 3, 150
    third = torch.full((4,), 1 / 3, dtype=torch.float64)
    grads = [[1 + torch.rand(5, 3, dtype=torch.float64, generator=_seeded(rank)), third] for rank in range(size)]

    def work(transport: Transport) -> list[Tensor]:
        one = bench(kind, transport, DTYPES[wire], torch.float64)
        for _ in range(rounds):
            one.iterate(grads[transport.rank], rate=1.0)
        return [parameter.detach() for parameter in one.parameters]

    values = run_workers(size, work)
    assert_replicas(values)
    owed = 2 * size * torch.finfo(DTYPES[wire]).eps  # gradients are below 2
    for index, value in enumerate(values[0]):
        expected = -rounds * sum(grads[rank][index] for rank in range(size))
        assert float((value - expected).abs().max()) <= owed
    rounding = float((third.to(DTYPES[wire]).double() - third).abs().max())
    assert rounds * size * rounding > 3 * owed


@pytest.mark.parametrize("kind", [NarrowRing, NarrowServer])
def test_gradients_below_the_least_fp16_arrive_in_the_end(kind):
    tiny = 1e-9  # 0 in fp16

    def work(transport: Transport) -> Tensor:
        one = bench(kind, transport, torch.float16)
        for _ in range(200):
            one.iterate([torch.full((5, 3), tiny), torch.full((4,), tiny)], rate=1.0)
        return one.parameters[0].detach()

    value = run_workers(2, work)[0]
    assert float((value + 400 * tiny).abs().max()) < 130 * tiny  # twice the least fp16, 6e-8, still owed


def test_what_fp16_cannot_hold_is_cut_and_sent_later():
    errors = ErrorFeedback(torch.float16, 2, torch.zeros(1))
    large = torch.tensor([200_000.0, 1.0])
    assert errors.narrowed(large, 0).tolist() == [65504, 1]
    rest = torch.zeros(2)
    assert [errors.narrowed(rest, 0).tolist()[0] for _ in range(4)] == [65504, 65504, 3488, 0]


def test_what_is_not_finite_does_not_stay():
    errors = ErrorFeedback(torch.bfloat16, 3, torch.zeros(1))
    first = errors.narrowed(torch.tensor([float("nan"), float("inf"), 1.0]), 0)
    assert first[0].isnan()
    assert first[1] >= 3e38
    assert errors.narrowed(torch.tensor([1.0, 1.0, 1.0]), 0).tolist() == [1.0, 1.0, 1.0]


def test_the_sum_is_taken_in_rank_order_from_what_travelled():
    """Against a straight calculation: others' gradients rounded to bf16, the owner's own as it is, in float32."""
    size = 3
    grads = [[torch.randn(5, 3, generator=_seeded(r)), torch.randn(4, generator=_seeded(9 + r))] for r in range(size)]
    seen: list[Tensor] = []
    lock = threading.Lock()

    def work(transport: Transport) -> None:
        one = bench(NarrowServer, transport, torch.bfloat16)
        for member, grad in zip(one.exchange.members, grads[transport.rank], strict=True):
            one.exchange.offer(member, grad.clone())
        tokens = [one.exchange.begin(send) for send in one.sends]
        for send, token in zip(one.sends, tokens, strict=True):
            for part in one.exchange.reduced(send, token):
                start = part.member.offset + part.region.start
                expected = torch.zeros(len(part.grad))
                for rank in range(size):
                    gradient = torch.cat([g.reshape(-1) for g in grads[rank]])[start : start + len(part.grad)]
                    expected += gradient if rank == transport.rank else gradient.bfloat16().float()
                assert torch.equal(part.grad, expected)
                with lock:
                    seen.append(part.grad)
            one.exchange.spread(send)

    run_workers(size, work)
    assert sum(len(grad) for grad in seen) == 19


# -- snapshots --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("large_bytes", [1, 1 << 30])
def test_a_restored_run_repeats_the_bits(tmp_path, monkeypatch, scheme, large_bytes):
    monkeypatch.setattr("poseidon.comm.several.LARGE_BYTES", large_bytes)
    overrides = (Override("fc2", scheme),)
    plan = plan_of(MLP, 3, plain_request(overrides=overrides, scheme=Scheme.RING, wire="bf16"), torch.float32)
    text = f'snapshot_prefix: "{tmp_path / "s"}"'

    def run(transport: Transport, restored: bool) -> list[Tensor]:
        solver = solver_of(MLP, "Adam", MLP.batch, torch.float32, text)
        with distribute(solver, transport, plan):
            solver.run = Fed(solver.net, lambda clock: MLP.share_of(clock, transport.rank, 3))
            if restored:
                solver.restore(tmp_path / "s_iter_5.solverstate")
            else:
                solver.step(5)
                solver.snapshot()
            solver.step(7)
            solver.updates.drain()
            return values_of(solver)

    whole = run_workers(3, lambda transport: run(transport, False))
    again = run_workers(3, lambda transport: run(transport, True))
    assert_replicas([*whole, *again])


def test_errors_of_another_unit_are_refused():
    errors = ErrorFeedback(torch.bfloat16, 7, torch.zeros(1))
    with pytest.raises(SnapshotError, match=r"owes 5 elements of a unit that has 7.*another plan"):
        errors.restore({"error": torch.zeros(5)})


def test_sixteen_bit_parameters_travel_as_they_are():
    solver = solver_of(MLP, "SGD", MLP.batch, torch.float32)
    for entry in solver.net.learnable:
        entry.value.data = entry.value.data.bfloat16()
    plan = plan_of(MLP, 2, plain_request(scheme=Scheme.RING, wire="bf16"), torch.float32)

    def work(transport: Transport) -> list[str]:
        return [type(exchange).__name__ for exchange in make_exchanges(solver.net, plan, transport)]

    assert run_workers(2, work) == [["Ring"] * 2] * 2
