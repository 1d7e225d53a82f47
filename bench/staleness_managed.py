"""Managed mode on a budget, in one process: which clock brings the loss down, with rows in this order or that.

Clocks and bytes count here, not seconds: workers are threads of one process, and a budget is bytes per clock.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import torch

from bench.staleness_worker import HOSTS, lenet, plan_of
from poseidon.comm.stale.hub import Hub, HubOptions
from poseidon.comm.stale.managed import Managed, ManagedOptions, PerClock, RowOrder, Unlimited
from poseidon.run.managed_updates import ManagedUpdates
from poseidon.run.roundtable import Roundtable
from poseidon.run.shards import count_labels_together, share_batch
from poseidon.solver import events
from poseidon.transport import Transport
from poseidon.transport.inproc import run_workers

SMOOTH = 20  # clocks over which losses are averaged
STALENESS = 32  # with fewer clocks most of a quarter goes to rows that are due


def bytes_per_clock(data: Path) -> float:
    """What a worker sends per clock with s = 0: all rows there, all values back."""
    _, sent = losses_of(6, data, RowOrder.IMPORTANCE, None, 0, 0.01, staleness=0)
    return sent


def losses_of(
    clocks: int,
    data: Path,
    order: RowOrder,
    budget: float | None,
    seed: int,
    base_lr: float,
    staleness: int = STALENESS,
) -> tuple[list[float], float]:
    """The mean loss over workers of every clock, and the mean bytes that one sent per clock."""
    torch.set_num_threads(1)

    def act(transport: Transport) -> tuple[list[float], float]:
        solver = lenet(clocks, data, tests=False, seed=1 + seed, base_lr=base_lr)
        plan = plan_of(solver, transport.size, served=True)
        table = Roundtable(transport)
        share_batch(solver.net, transport.rank, transport.size)
        count_labels_together(solver.net, None)
        allowance = Unlimited() if budget is None else PerClock(budget)
        outgoing = Managed(allowance, ManagedOptions(order, seed=seed * HOSTS + transport.rank))
        updates = ManagedUpdates(solver, plan, Hub(transport, HubOptions(outgoing=outgoing)), staleness, table.mean)
        solver.updates = updates
        losses: list[float] = []
        solver.listeners.append(
            lambda event: losses.append(float(event.loss)) if isinstance(event, events.IterationDone) else None
        )
        solver.step(clocks)
        sent = updates.hub.mailbox.bytes_sent / clocks
        updates.drain()
        updates.close()
        return losses, sent

    by_rank = run_workers(HOSTS, act, timeout_s=3600)
    means = [statistics.fmean(column) for column in zip(*(losses for losses, _ in by_rank), strict=True)]
    return means, statistics.fmean(sent for _, sent in by_rank)


def smoothed(losses: Sequence[float]) -> list[float]:
    """Of every clock from SMOOTH on, the mean of the last SMOOTH losses."""
    return [statistics.fmean(losses[clock - SMOOTH : clock]) for clock in range(SMOOTH, len(losses) + 1)]


def first_below(losses: Sequence[float], target: float) -> int | None:
    """The first clock at which the smoothed loss is not above the target; None: it never is."""
    return next((SMOOTH + place for place, loss in enumerate(smoothed(losses)) if loss <= target), None)
