"""What worker processes do: train the same model by DistributedDataParallel and by Parallel, and compare."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import poseidon
from poseidon.parallel import Parallel, planning
from poseidon.run.rates import exchange_seconds
from poseidon.run.roundtable import Roundtable
from poseidon.transport import Transport
from poseidon.transport.c10d import C10dOptions, from_group
from tests.parallel.models import BY_NAME, OPTIMIZERS, Case
from tests.worker_process import Seat

STEPS = 10


@contextlib.contextmanager
def grouped(seat: Seat) -> Iterator[None]:
    """torch's default process group, over gloo. What an exchange takes of a worker is measured by the first model that
    plans there: the others are of the same processes, and it takes as long as all their steps."""
    found: list[tuple[float, float]] = []

    def measured_once(table: Roundtable, device: torch.device) -> tuple[float, float]:
        if not found:
            found.append(exchange_seconds(table, device))
        return found[0]

    dist.init_process_group("gloo", store=seat.store, rank=seat.rank, world_size=seat.size)
    try:
        with mock.patch.object(planning, "exchange_seconds", measured_once):
            yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def beside(seat: Seat) -> Iterator[Transport]:
    """A transport that several models use one after another."""
    transport = from_group(dist.group.WORLD, C10dOptions(address="127.0.0.1", join_s=30.0, limit_s=60.0))
    try:
        yield transport
        transport.barrier(30.0)
    finally:
        transport.close()


def train(
    model: nn.Module, optimizer: Any, case: Case, rank: int, dtype: torch.dtype, *, is_flipped: bool = False
) -> None:
    """`is_flipped`: samples come in the opposite order, which changes nothing but the order of sums."""
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs = case.inputs(step, rank, dtype)
        model(*(entry.flip(0) for entry in inputs) if is_flipped else inputs).backward()
        optimizer.step()


def state_of(model: nn.Module) -> list[Tensor]:
    return [*(p.detach().clone() for p in model.parameters()), *(b.clone() for b in model.buffers())]


def by_ddp(
    case: Case, kind: str, rank: int, dtype: torch.dtype, bucket_mb: float = 25.0, *, is_flipped: bool = False
) -> list[Tensor]:
    model = DistributedDataParallel(case.model(dtype), find_unused_parameters=case.find_unused, bucket_cap_mb=bucket_mb)
    train(model, OPTIMIZERS[kind](model.parameters()), case, rank, dtype, is_flipped=is_flipped)
    return state_of(model.module)


def by_ours(
    case: Case, kind: str, transport: Transport, dtype: torch.dtype, way: str
) -> tuple[list[Tensor], list[str]]:
    """The trained state, and the schemes that were used."""
    schemes = {"*": "factors"} if way == "factors" and any(p.factors for p in _params(case)) else None
    model = Parallel(
        case.model(dtype),
        find_unused_parameters=case.find_unused,
        bandwidth="100mbit",
        schemes=schemes,
        transport=transport,
    )
    optimizer = OPTIMIZERS[kind](model.parameters())
    if way == "overlap":
        optimizer = poseidon.overlap(optimizer, model)
    train(model, optimizer, case, transport.rank, dtype)
    assert model.is_planned
    found = state_of(model)
    used = sorted({unit.scheme.value for unit in model.plan.units})
    model.close()
    return found, used


def _params(case: Case) -> Sequence[Any]:
    from poseidon.parallel.structure import find_structure

    return [p for p in find_structure(case.model()).params.values() if p.parameter.requires_grad]


def relative(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest relative difference of any tensor, by norms."""
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        norm = float(other.double().norm())
        worst = max(worst, float((one.double() - other.double()).norm()) / (norm or 1.0))
    return worst


def distance(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """‖a − b‖ / ‖b‖ over everything."""
    above = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(found, expected, strict=True))
    return math.sqrt(above / sum(float(b.double().square().sum()) for b in expected))


def compare(seat: Seat, names: list[str], kinds: list[str], ways: list[str]) -> dict[str, Any]:
    """By model, optimizer and way: how far ours ends from DistributedDataParallel, in double precision."""
    found: dict[str, Any] = {}
    with grouped(seat), beside(seat) as transport:
        for name in names:
            for kind in kinds:
                expected = by_ddp(BY_NAME[name], kind, seat.rank, torch.float64)
                for way in ways:
                    state, used = by_ours(BY_NAME[name], kind, transport, torch.float64, way)
                    sums = [float(t.double().sum()) for t in state[: len(list(BY_NAME[name].model().parameters()))]]
                    entry = {"difference": relative(state, expected), "schemes": used, "sums": sums}
                    found[f"{name} {kind} {way}"] = entry
    return found


def compare_singles(seat: Seat, names: list[str], kinds: list[str]) -> dict[str, Any]:
    """In single precision: how far ours ends from DistributedDataParallel, and that from itself with other buckets, or
    with samples in another order: two workers' sums have the same bits in any bucket."""
    found: dict[str, Any] = {}
    with grouped(seat), beside(seat) as transport:
        for name in names:
            for kind in kinds:
                case, rank = BY_NAME[name], seat.rank
                one = by_ddp(case, kind, rank, torch.float32)
                others = [by_ddp(case, kind, rank, torch.float32, bucket_mb=1e-3)]
                others.append(by_ddp(case, kind, rank, torch.float32, is_flipped=True))
                ours = [by_ours(case, kind, transport, torch.float32, way)[0] for way in ("plain", "overlap")]
                found[f"{name} {kind}"] = {
                    "theirs": max(distance(other, one) for other in others),
                    "ours": max(distance(own, one) for own in ours),
                }
    return found


def uneven(
    seat: Seat,
    names: list[str],
    kind: str,
    way: str,
    steps: list[int],
    divides_by_all: bool = True,
    enable: bool = True,
) -> float:
    """How far ours ends from DistributedDataParallel when ranks have different numbers of batches, by rank in `steps`:
    the most of any model.

    From step 8 on batches are twice as large, so that there are reasons for new plans while some have joined.
    """
    with grouped(seat):
        return max(_uneven(seat, BY_NAME[name], kind, way, steps, divides_by_all, enable) for name in names)


def _uneven(seat: Seat, case: Case, kind: str, way: str, steps: list[int], divides_by_all: bool, enable: bool) -> float:

    def inputs(step: int) -> tuple[Tensor, ...]:
        first, second = case.inputs(step, seat.rank), case.inputs(step + 100, seat.rank)
        return tuple(map(torch.cat, zip(first, second, strict=True))) if step >= 8 else first

    def run(model: Any, optimizer: Any) -> None:
        with Join([model], enable=enable, divide_by_initial_world_size=divides_by_all):
            for step in range(steps[seat.rank]):
                optimizer.zero_grad()
                model(*inputs(step)).backward()
                optimizer.step()

    ddp = DistributedDataParallel(case.model())
    run(ddp, OPTIMIZERS[kind](ddp.parameters()))
    schemes = {"*": "factors"} if any(p.factors for p in _params(case)) else None
    ours = Parallel(case.model(), bandwidth="100mbit", schemes=schemes)
    optimizer = OPTIMIZERS[kind](ours.parameters())
    run(ours, poseidon.overlap(optimizer, ours) if way == "overlap" else optimizer)
    found = relative([p.detach() for p in ours.parameters()], [p.detach() for p in ddp.parameters()])
    dist.barrier()
    ours.close()
    return found
