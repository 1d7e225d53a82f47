"""distribute: makes one job of the solvers that P workers have built alike.

    with distribute(solver, transport, plan, DistributeOptions(sync_bn=True)):
        solver.solve()

Every worker builds the same Solver and calls it at the same time. From then on the workers

    compare     what they were started with (facts.py), and refuse to go on if anything differs
    share       the records and random draws of the P-fold batch, and the counts of valid labels (shards.py)
    exchange    gradients, as the plan says (updates.py)
    average     losses and outputs that are shown, and BatchNorm's statistics before tests and snapshots (statistics.py)
    deal out    test batches (dealing.py)
    deal out    batches by speed, if asked to (balance.py)
    agree       on when to stop and to snapshot (agreement.py); rank 0 writes, everybody can restore (worker_states.py)

The loop is the solver's own: what it calls are `solver.updates` and `solver.team`.
"""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any

from poseidon.comm.events import CommEvent, CommListener
from poseidon.comm.exchange import Exchange
from poseidon.comm.stale.protocol import Mode
from poseidon.errors import PlanError, UsageError
from poseidon.plan import CommPlan, check_fits
from poseidon.run.agreement import Agreement
from poseidon.run.balance import Balance
from poseidon.run.cards import agree_on_threads
from poseidon.run.dealing import choose_way
from poseidon.run.ended import EndedUpdates
from poseidon.run.facts import (
    SAME_FILES,
    Fact,
    check_facts,
    net_facts,
    plan_fact,
    replica_facts,
    setting_facts,
    version_facts,
)
from poseidon.run.kept_data import KeptData
from poseidon.run.layer_times import LayerTime
from poseidon.run.managed_updates import ManagedUpdates, managed_outgoing
from poseidon.run.meter import Counters, Meter
from poseidon.run.net_outputs import NetOutputs
from poseidon.run.options import DistributeOptions
from poseidon.run.parts import Parts
from poseidon.run.profile import profile_net
from poseidon.run.replicas import ReplicaCheck
from poseidon.run.roundtable import Roundtable
from poseidon.run.seeds import take_common_seed
from poseidon.run.shards import check_outputs, count_labels_together, share_batch
from poseidon.run.stale_updates import Staleness, StaleUpdates, check_stale, open_hub
from poseidon.run.statistics import average_statistics, synchronise_statistics
from poseidon.run.stats import Stats
from poseidon.run.team import WorkerTeam
from poseidon.run.updates import DistributedUpdates
from poseidon.run.worker_states import WorkerStates
from poseidon.solver import Solver, events
from poseidon.solver.team import Alone
from poseidon.transport import Transport

__all__ = ["DistributeOptions", "Distribution", "distribute"]


def distribute(
    solver: Solver,
    transport: Transport,
    plan: CommPlan,
    options: DistributeOptions | None = None,
    *,
    listener: CommListener | None = None,
    serving: Transport | None = None,
) -> Distribution:
    """Makes a solver one of `transport.size` workers; see the module's docstring. `listener` hears of exchanges.

    `serving`: the transport of workers and, behind them, `options.servers` processes that only serve.
    """
    return Distribution(solver, transport, plan, options or DistributeOptions(), listener, serving)


class Distribution:
    """A solver in its team, until `close`. `plan` is the one in use: a restored snapshot may bring its own."""

    def __init__(
        self,
        solver: Solver,
        transport: Transport,
        plan: CommPlan,
        options: DistributeOptions,
        listener: CommListener | None,
        serving: Transport | None = None,
    ) -> None:
        self._serving = serving
        self.solver, self.transport, self.plan, self.options = solver, transport, plan, options
        self._comm_listener = listener
        self._table = Roundtable(transport)
        check_facts(version_facts(), self._table)
        settings = setting_facts(solver.param, solver.net.dtype, options.common())
        check_facts([*settings, *net_facts(solver), plan_fact(plan)], self._table)
        _check_possible(solver, plan, transport.size)
        take_common_seed(solver, self._table)
        check_facts(replica_facts(solver), self._table)
        self._threads = agree_on_threads(self._table)
        self._share_work()
        self._agreement = Agreement(self._table, options.agree_s, lag=1 + (options.staleness or 0))
        self._states = WorkerStates(solver, self._table)
        self.updates: DistributedUpdates | StaleUpdates | ManagedUpdates | None = None
        self.meter = Meter(self._counters)
        self._use(plan)
        self._parts = Parts(solver, self._table, plan) if options.balance and transport.size > 1 else None
        self._balance = None if self._parts is None else Balance(self._table, self._parts.counts, self.deal)
        self._stats = None if options.stats is None else Stats(options.stats, self._table)
        solver.team = WorkerTeam(
            self._table,
            self._agreement,
            {net: choose_way(net, self._table) for net in solver.test_nets},
            self,
        )
        writes = options.net_outputs is not None and transport.rank == 0
        self._net_outputs = NetOutputs(options.net_outputs or "", len(solver.test_nets)) if writes else None
        solver.listeners.append(self._listen)
        solver.callbacks.append(self.meter)

    # -- life -------------------------------------------------------------------------------------------------------
    def __enter__(self) -> Distribution:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(wait=problem is None)

    def close(self, *, wait: bool = True) -> None:
        """Ends the exchanges. `wait` for those under way first, unless something has failed and they never end.

        The nets can be used by one worker alone afterwards, but not trained further (ended.py).
        """
        if self._listen not in self.solver.listeners:
            return
        self.solver.listeners.remove(self._listen)
        self.solver.callbacks.remove(self.meter)
        if wait:
            self.solver.updates.drain()
            self._agreement.end()
            if self._balance is not None:
                self._balance.end()
        self._part(wait)
        self._close_files(wait)

    def _close_files(self, wait: bool) -> None:
        if self._stats is not None and wait:
            self._stats.collect()
        elif self._stats is not None:
            with contextlib.suppress(UsageError):
                self._stats.close()
        if self._net_outputs is not None:
            # After a failure, one more must not hide it.
            with contextlib.nullcontext() if wait else contextlib.suppress(UsageError):
                self._net_outputs.write()

    def _part(self, wait: bool) -> None:
        solver = self.solver
        if self._parts is not None:
            self._parts.close(self._exchanges)
        if self.updates is not None:
            self.updates.close(wait=wait)
            solver.updates = EndedUpdates()
        if self._kept is not None:
            self._kept.close()
        solver.team = Alone()
        for net in (solver.net, *solver.test_nets):
            share_batch(net, 0, 1)
        count_labels_together(solver.net, None)
        synchronise_statistics(solver.net, None)

    # -- setting up -------------------------------------------------------------------------------------------------
    def _share_work(self) -> None:
        net, table = self.solver.net, self._table
        share_batch(net, table.rank, table.size)
        if self.options.averages:
            count_labels_together(net, table, waits=not self.options.staleness)
        if self.options.sync_bn:
            synchronise_statistics(net, table)
        self._kept = KeptData(net, self.transport, table) if self.options.data_in_memory else None

    def _use(self, plan: CommPlan) -> None:
        """Exchanges by this plan from now on."""
        if self.updates is not None:
            self.updates.hand_back()
            self.updates.close()
        self.plan = plan
        if self.transport.size > 1 or self._serving is not None:
            self.updates = self.solver.updates = self._updates(plan)
        self._replicas = ReplicaCheck(self.solver.net, plan, self._table, with_statistics=self.options.sync_bn)

    def _updates(self, plan: CommPlan) -> DistributedUpdates | StaleUpdates | ManagedUpdates:
        options = self.options
        if options.staleness is None:
            return DistributedUpdates(
                self.solver,
                plan,
                self.transport,
                averages=options.averages,
                threads=self._threads,
                listener=self._hear_comm,
            )
        staleness = Staleness(options.staleness, Mode(options.consistency), options.servers)
        check_stale(self.solver, plan)
        hub = open_hub(self._serving or self.transport, staleness, managed_outgoing(options, self.solver.seed))
        if staleness.mode is Mode.MANAGED:
            return ManagedUpdates(
                self.solver,
                plan,
                hub,
                staleness.clocks,
                self._table.mean,
                averages=options.averages,
                listener=self._hear_comm,
            )
        return StaleUpdates(self.solver, plan, hub, staleness, averages=options.averages, listener=self._hear_comm)

    @property
    def carriers(self) -> str:
        """What carries notified puts from this worker: `shared memory + tcp`; empty under other patterns."""
        return "" if self.updates is None else self.updates.carriers

    @property
    def _exchanges(self) -> list[Exchange]:
        return [] if self.updates is None else list(self.updates.exchanges)

    # -- while training ---------------------------------------------------------------------------------------------
    def level(self) -> None:
        """Replicas are alike afterwards, statistics too."""
        if not self.options.sync_bn:
            average_statistics(self.solver.net, self._table)
        if self._stats is not None:
            self._stats.collect()

    def deal(self, parts: tuple[int, ...]) -> None:
        """Batches are dealt out in these parts from now on. All workers call it, after the same iteration."""
        assert self._parts is not None, "only where the options ask for balance"
        assert self._balance is not None
        self.solver.updates.drain()
        self._parts.deal(parts, self._exchanges)
        self._balance.reset(parts)

    def state(self) -> Any:
        return self._states.state(self.plan)

    def restore(self, state: Any) -> None:
        self._states.restore(state)

    def _after_restoring(self) -> None:
        """Goes on with the plan that came with a snapshot, if it can be used: settings may have changed since."""
        if self._parts is not None and self._balance is not None:
            # Equal parts: plans are for those, and who was fast before need not be now.
            self._parts.close(self._exchanges)
            self._balance.reset(self._parts.counts)
        brought = self._states.brought()
        saved = "none" if brought.plan is None else brought.plan.to_json()
        check_facts([*replica_facts(self.solver), Fact("snapshot's plan", saved, SAME_FILES)], self._table)
        plan = brought.plan if self.options.reuse_plan and self._serving is None else None
        is_stale = self.options.staleness is not None
        if plan is not None and plan != self.plan and _fits(self.solver, plan, self._table.size, is_stale=is_stale):
            self._use(plan)
        if self.updates is not None:
            if isinstance(self.updates, (StaleUpdates, ManagedUpdates)):
                self.updates.begin_anew()
                self._table.meet()  # no update before all servers have begun anew
            self.updates.restore_wire_state(brought.read_owed() if brought.plan == self.plan else {})

    @property
    def sent_bytes(self) -> int:
        """Payload that this worker has sent so far."""
        return self._counters().sent_bytes

    def _counters(self) -> Counters:
        waited_s = self._table.waited_s + (0.0 if self.updates is None else self.updates.waited_s)
        sent, received, staleness = self.transport.bytes_sent, self.transport.bytes_received, 0
        if isinstance(self.updates, (StaleUpdates, ManagedUpdates)):
            sent += self.updates.hub.mailbox.bytes_sent
            received += self.updates.hub.mailbox.bytes_received
            staleness = self.updates.scheduler.staleness_seen
        elif self.updates is not None:
            sent += self.updates.put_bytes
        return Counters(waited_s, sent, received, staleness)

    def _hear_comm(self, event: CommEvent) -> None:
        self.meter.hear_comm(event)
        if self._comm_listener is not None:
            self._comm_listener(event)

    def _listen(self, event: events.Event) -> None:
        if isinstance(event, events.IterationDone):
            figures = self.meter.done(event.iteration + 1)
            if self._stats is not None:
                self._stats.note(figures)
            if self._balance is not None:
                self._balance.after(figures)
        if self._net_outputs is not None:
            self._net_outputs(event)
        every = self.options.verify_replicas
        if isinstance(event, events.IterationDone) and every and (event.iteration + 1) % every == 0:
            self.solver.updates.drain()
            self._replicas.run(event.iteration)
        if isinstance(event, events.Restored):
            self._after_restoring()


def _check_possible(solver: Solver, plan: CommPlan, size: int) -> None:
    _check_plan(solver, plan, size)
    if size == 1:
        return
    if solver.keep_update:
        raise UsageError(
            "several workers keep no parameter diffs after an update; set snapshot_diff: false (and no keep_update)"
        )
    for net in (solver.net, *solver.test_nets):
        check_outputs(net)


def _check_plan(solver: Solver, plan: CommPlan, size: int) -> None:
    if plan.cluster.num_workers != size:
        raise PlanError(f"the plan is for {plan.cluster.num_workers} workers, there are {size}: make a new plan")
    param = solver.param
    times = [LayerTime(0.0, 0.0) for _ in solver.net.graph.nodes]
    profile = profile_net(solver.net, times, iter_size=param.iter_size, needs_all_gradients=param.clip_gradients >= 0)
    check_fits(plan, profile)


def _fits(solver: Solver, plan: CommPlan, size: int, *, is_stale: bool) -> bool:
    try:
        _check_plan(solver, plan, size)
        if is_stale:
            check_stale(solver, plan)
    except PlanError:
        return False
    return True
