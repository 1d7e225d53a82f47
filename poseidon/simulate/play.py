"""Play: a plan on machines, iteration after iteration, in simulated time.

The first iteration waits for nothing; those after it wait for what the one before has sent. Where all workers are alike
and every collective treats them alike, one stands for all: the times are the same. Where they are not, every worker and
every message is played; with so many of them that this would take minutes, messages are played a wave at a time
(`flock.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poseidon.errors import UsageError
from poseidon.plan import CommPlan, NetProfile, check_fits
from poseidon.plan.commplan import COLLECTIVE
from poseidon.simulate.agenda import Agenda
from poseidon.simulate.exchange import LegRun, Nodes
from poseidon.simulate.flock import Flock
from poseidon.simulate.legs import Trip, trips_of
from poseidon.simulate.machines import Machines
from poseidon.simulate.network import Network
from poseidon.simulate.worker import Listener, Script, Worker

MOST_MESSAGES = 150_000  # of an iteration, played one by one
MOST_STEPS = 128  # of a collective among many nodes


@dataclass(frozen=True, slots=True)
class Played:
    """What came of it.

    iteration_s, wait_s   by worker and iteration: how long it took, and how much of that forward stood still
    bytes_sent, bytes_received   by node, in all iterations together
    nodes                 by worker, its node
    is_one_for_all        one worker stood for all; there is then one entry for all of them
    """

    iteration_s: tuple[tuple[float, ...], ...]
    wait_s: tuple[tuple[float, ...], ...]
    bytes_sent: tuple[float, ...]
    bytes_received: tuple[float, ...]
    nodes: tuple[int, ...]
    is_one_for_all: bool

    @property
    def num_iterations(self) -> int:
        return len(self.iteration_s[0])

    @property
    def steady_s(self) -> float:
        """The mean of all iterations but the first, which waits for nothing, over all workers."""
        return _mean([seconds for worker in self.iteration_s for seconds in worker[1:] or worker])

    @property
    def waited_s(self) -> float:
        """The same of waiting."""
        return _mean([seconds for worker in self.wait_s for seconds in worker[1:] or worker])


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


@dataclass(frozen=True, slots=True)
class Manner:
    """How a play is carried out, where it shall not be chosen: with one worker for all or not; messages one by one, or
    waves; so many steps as one."""

    one_for_all: bool | None = None
    waves: bool | None = None
    stride: int | None = None


def play(
    plan: CommPlan,
    profile: NetProfile,
    machines: Machines,
    num_iterations: int,
    tell: Callable[[int], Listener | None] = lambda rank: None,
    manner: Manner = Manner(),  # noqa: B008  (frozen)
) -> Played:
    """Plays a plan that was made for the machines' cluster, or one of the same nodes. `tell(rank)` is told what the
    worker does, if it is not None."""
    check_fits(plan, profile)
    if plan.pattern != COLLECTIVE:
        raise UsageError(f"plans by collectives can be simulated, not those of the pattern {plan.pattern!r}")
    if plan.cluster.node_workers != machines.cluster.node_workers:
        raise UsageError(
            f"the plan is for nodes of {list(plan.cluster.node_workers)} workers, the machines have "
            f"{list(machines.cluster.node_workers)}: make a plan for them"
        )
    if num_iterations < 1:
        raise UsageError(f"at least 1 iteration is to be simulated, got {num_iterations}")
    return _Stage(Script(plan, profile, _trips(plan, profile, machines, manner), num_iterations), machines, manner).run(
        tell
    )


def _trips(plan: CommPlan, profile: NetProfile, machines: Machines, manner: Manner) -> tuple[Trip, ...]:
    stride = manner.stride or -(-2 * (machines.cluster.num_nodes - 1) // MOST_STEPS) or 1
    return trips_of(plan, profile, stride=stride)


def compute_factors(machines: Machines, num_iterations: int) -> NDArray[np.float64]:
    """By iteration and worker, how many times as long it computes: mean 1 and standard deviation `jitter`, log-normal,
    times a straggler's factor. Drawn by iteration, so that more iterations do not change the first ones."""
    num_workers = machines.cluster.num_workers
    factors = np.ones((num_iterations, num_workers))
    if machines.jitter:
        variance = math.log1p(machines.jitter**2)
        for iteration in range(num_iterations):
            draws = np.random.default_rng((machines.seed, iteration)).standard_normal(num_workers)
            factors[iteration] = np.exp(math.sqrt(variance) * draws - variance / 2)
    for straggler in machines.stragglers:
        factors[:, straggler.rank] *= straggler.factor
    return factors


class _Stage:
    """Everything that a play needs, and the ways of its Sends."""

    def __init__(self, script: Script, machines: Machines, manner: Manner) -> None:
        self._script, self._machines = script, machines
        self._agenda = Agenda()
        collectives = {id(c): c for trip in script.trips for c in trip.collectives}.values()
        alike = machines.are_alike and all(collective.is_uniform for collective in collectives)
        self._one_for_all = alike if manner.one_for_all is None else manner.one_for_all
        self._nodes = Nodes(
            (1,) if self._one_for_all else machines.cluster.node_workers, machines.cluster.local_bps, self._agenda
        )
        self._network = self._make_network(manner)
        self._workers: list[Worker] = []
        self._legs: dict[tuple[bool, int, int], LegRun] = {}
        self._num_through: dict[tuple[bool, int, int], int] = {}

    def _make_network(self, manner: Manner) -> Any:
        if self._one_for_all:
            return Network(self._machines, self._agenda, 1)
        num_nodes = self._machines.cluster.num_nodes
        num_messages = num_nodes * sum(len(c.waves) for trip in self._script.trips for c in trip.collectives)
        waves = num_messages > MOST_MESSAGES if manner.waves is None else manner.waves
        return Flock(self._machines, self._agenda) if waves else Network(self._machines, self._agenda, num_nodes)

    def run(self, tell: Callable[[int], Listener | None]) -> Played:
        factors = compute_factors(self._machines, self._script.num_iterations).T.tolist()
        self._workers = [
            Worker(rank, self._script, factors[rank], self._agenda, self, tell(rank))
            for rank in range(len(self._nodes.node_of))
        ]
        for worker in self._workers:
            self._agenda.at(0.0, worker.begin)
        self._agenda.run()
        return Played(
            tuple(tuple(worker.iteration_s) for worker in self._workers),
            tuple(tuple(worker.wait_s) for worker in self._workers),
            tuple(map(float, self._network.bytes_sent)),
            tuple(map(float, self._network.bytes_received)),
            self._machines.nodes_of_workers,
            self._one_for_all,
        )

    # -- what workers ask for ---------------------------------------------------------------------------------------
    def push(self, place: int, iteration: int, worker: int) -> None:
        self._leg(False, place, iteration).join(worker)

    def pull(self, place: int, iteration: int, worker: int) -> None:
        self._leg(True, place, iteration).join(worker)

    def handle(self, num_bytes: float, worker: int, call: Callable[[], None]) -> None:
        self._network.handle(self._nodes.node_of[worker], num_bytes, call)

    def _leg(self, is_pull: bool, place: int, iteration: int) -> LegRun:
        key = (is_pull, place, iteration)
        if key not in self._legs:
            trip = self._script.trips[place]
            arrived = partial(self._through, key)
            self._legs[key] = LegRun(trip.pull if is_pull else trip.push, self._nodes, self._network, arrived)
            self._num_through[key] = 0
        return self._legs[key]

    def _through(self, key: tuple[bool, int, int], worker: int) -> None:
        is_pull, place, iteration = key
        self._num_through[key] += 1
        if self._num_through[key] == len(self._workers):
            del self._legs[key], self._num_through[key]
        if is_pull:
            self._workers[worker].arrived(place, iteration)
        else:
            self._workers[worker].reduced(place, iteration)
