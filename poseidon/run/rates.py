"""Rates of a worker's device that a plan needs, measured on stand-ins so that nothing of the net changes.

    flops        products as FACTORS rebuilds gradients with them, uᵀ v: u is K × M and v is K × N
    update_bps   parameters through the solver's rule, in bits per second
    send_s       processor time that an all-reduce takes from a net which computes on the same processor
    collective_s the same, of one of our own collectives

All workers measure at the same time: those of one host share its memory, as they will while training.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from poseidon.plan import NetProfile
from poseidon.plan.cluster import DEFAULT_SEND_S
from poseidon.run.cards import agree_on_threads
from poseidon.run.roundtable import Roundtable
from poseidon.solver import Solver
from poseidon.solver.rules import Hyper

_NUM_TRIES = 3
_NUM_SENDS = 20
_SEND_ELEMS = 64
_MOST_SIDE = 1024  # of a product's three sides; beyond that the rate grows no more
_MOST_ELEMS = 1 << 20


@dataclass(frozen=True, slots=True)
class Rates:
    flops: float
    update_bps: float
    send_s: float
    collective_s: float


def measure_rates(solver: Solver, profile: NetProfile, table: Roundtable) -> Rates:
    """Of this worker; infinite where the net has nothing of the kind. All workers call it together."""
    net = solver.net
    send_s, collective_s = exchange_seconds(table, net.device)
    with agree_on_threads(table).alike():
        flops = product_flops(profile, table.size, net.device, net.dtype)
    return Rates(flops, _update_bps(solver), send_s, collective_s)


def exchange_seconds(table: Roundtable, device: torch.device) -> tuple[float, float]:
    """`send_s` and `collective_s` of this worker. All workers call it together."""
    if device.type != "cpu":
        return DEFAULT_SEND_S, 0.0
    own = torch.zeros(_SEND_ELEMS)
    send_s = _processor_s(lambda: table.sum(own))
    return send_s, max(0.0, _processor_s(lambda: table.gather(own)) - send_s)


def product_flops(profile: NetProfile, num_workers: int, device: torch.device, dtype: torch.dtype) -> float:
    """`flops` of this worker, for the largest product; infinite if there is none."""
    shapes = [param.factors for param in profile.params if param.factors is not None and param.learns]
    if not shapes:
        return math.inf
    largest = max(shapes, key=lambda shape: shape.rows * shape.outputs * shape.inputs)
    rows, outputs, inputs = (
        min(side, _MOST_SIDE) for side in (largest.rows * num_workers, largest.outputs, largest.inputs)
    )
    u = torch.ones(rows, outputs, device=device, dtype=dtype)
    v = torch.ones(rows, inputs, device=device, dtype=dtype)
    return 2 * rows * outputs * inputs / _seconds(device, lambda: u.t() @ v)


def _update_bps(solver: Solver) -> float:
    moving = [slot for slot in solver.slots if slot.value.requires_grad and slot.value.numel()]
    if not moving:
        return math.inf
    largest = max(moving, key=lambda slot: slot.value.numel())
    value = largest.value.detach().reshape(-1)[:_MOST_ELEMS].clone()
    slot = solver.rule.slot("stand-in", value, largest.rate_mult, largest.decay_mult)
    grad = torch.zeros_like(value)
    hyper = Hyper.of(solver.param, 0, solver.lr)
    return value.nbytes * 8 / _seconds(solver.net.device, lambda: solver.rule.update([slot], [grad], hyper))


def _processor_s(exchange: Callable[[], object]) -> float:
    """Processor time of all threads, per call; the first calls, which start threads, are not counted."""
    for _ in range(_NUM_TRIES):
        exchange()
    begin = time.process_time()
    for _ in range(_NUM_SENDS):
        exchange()
    return (time.process_time() - begin) / _NUM_SENDS


def _seconds(device: torch.device, run: Callable[[], object]) -> float:
    """The median of a few runs after a first that is not counted."""
    seconds = []
    for _ in range(_NUM_TRIES + 1):
        begin = time.perf_counter()
        with torch.no_grad():
            run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return max(statistics.median(seconds[1:]), 1e-9)
