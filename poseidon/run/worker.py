"""Worker: what one of P processes does, from joining the job to its end.

    join      the interface towards the master, a transport
    compare   versions, settings and what is asked for: workers that were started differently end here (facts.py)
    settle    everybody's card; the cores are divided, and workers of one host share its memory
    build     the solver, alike on all workers: a random seed is rank 0's; the nets are compared
    plan      measured and made, or taken from the snapshot; rank 0 shows it
    train     distribute (distribute.py), restore, solve

Whatever goes wrong on one worker ends all of them within seconds, and all say why. A worker that is in the midst of a
long computation when another is lost does not hear of it there: the sentinel ends it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from poseidon.errors import PeerLost, PoseidonError, TransportError, UsageError, WorkersDiffer, WorkersFailed
from poseidon.observe.options import ObserveOptions
from poseidon.plan import PlanRequest
from poseidon.run.attempt import attempt
from poseidon.run.cards import Card, nodes_of, threads_of
from poseidon.run.distribute import DistributeOptions, distribute
from poseidon.run.exits import CRASHED, LOST_ANOTHER, MISTAKE, code_of
from poseidon.run.facts import Fact, check_facts, lines_of, net_facts, setting_facts, version_facts
from poseidon.run.lookout import Lookout, Outlook
from poseidon.run.observation import Observation
from poseidon.run.planning import Links, Planned, Planning, plan_together
from poseidon.run.rendezvous import Place, lead_nccl
from poseidon.run.resume import Resume, agree_on_snapshot
from poseidon.run.roundtable import Roundtable
from poseidon.run.seat import Seat, cluster_facts
from poseidon.run.servers import serve_tables, workers_of
from poseidon.run.view import JobView
from poseidon.run.watch import Watch, WatchedTeam
from poseidon.run.welcome import Crew, batch_lines, cluster_lines, links_line, plan_lines
from poseidon.solver import NetOptions, Solver
from poseidon.solver.background import BackgroundWriter
from poseidon.solver.events import Listener
from poseidon.solver.snapshot import check_writable
from poseidon.spec import caffe_pb2
from poseidon.transport import Transport
from poseidon.transport.base import names_of
from poseidon.transport.c10d import C10dOptions, C10dTransport, Master, connect
from poseidon.transport.interface import choose_interface
from poseidon.transport.levels import Sharing, share_nodes
from poseidon.transport.native import IS_BUILT
from poseidon.transport.paced import PacedTransport
from poseidon.transport.pacing import Pace
from poseidon.transport.vitals import Vitals

# A lost worker is noticed within 7 s; together with this the survivors end within 10.
END_S = 2.5
VERDICT_S = 1.0  # for the news of who was lost first
LOOK_S = 0.25
SWITCH_S = 0.0005  # threads that move gradients get their turn sooner than Python's 5 ms


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How workers train together.

    threads     to compute with; None: the cores of a host are divided among its workers
    interface   name of the network interface; None: the one towards the master
    resume      which snapshot to go on from
    secret      the job's; empty if it has none
    keep        how many snapshots stay; 0: all
    report_s    an exchange that takes longer is reported
    hang_s      a worker that stands still so long while all others wait for it is lost
    watch       keeps count of where this worker stands
    one_sided   what carries notified puts: "sockets" or "mpi"
    observe     what is recorded of the run, and who is told
    """

    net: NetOptions
    request: PlanRequest
    team: DistributeOptions
    links: Links
    threads: int | None = None
    interface: str | None = None
    resume: Resume = field(default_factory=Resume)
    secret: bytes = field(default=b"", repr=False)
    keep: int = 0
    report_s: float = 30.0
    hang_s: float = 300.0
    watch: Watch = field(default_factory=Watch)
    one_sided: str = "sockets"
    observe: ObserveOptions = field(default_factory=ObserveOptions)


@dataclass(frozen=True, slots=True)
class Face:
    """A worker's side towards people.

    listeners   hear the solver's events
    show        shows lines; only rank 0's is called
    train       trains, once the solver is one of several: restores a snapshot (""; none), answers signals, solves
    farewell    says why the process ends, where no exception can reach the command line
    meet        is given what can be seen of the job; only rank 0's is called
    """

    listeners: tuple[Listener, ...]
    show: Callable[[Sequence[str]], None]
    train: Callable[[Solver, str], None]
    farewell: Callable[[PoseidonError], None]
    meet: Callable[[JobView], None] = lambda view: None


def train_worker(param: caffe_pb2.SolverParameter, place: Place, options: WorkerOptions, face: Face) -> None:
    """Trains as one of `place.size` workers, to the end."""
    sys.setswitchinterval(SWITCH_S)
    if torch.device(options.net.device).type == "cuda":
        torch.cuda.set_device(options.net.device)
    is_multi_host = place.local_size is not None and place.local_size < place.size
    interface = choose_interface(place.master_address, is_multi_host=is_multi_host, wanted=options.interface)
    lead_nccl(os.environ, interface.name)
    master = Master(place.master_address, place.master_port, place.store_prefix)
    joining = C10dOptions(
        address=interface.address,
        secret=options.secret,
        vitals=options.watch.vitals,
        one_sided=options.one_sided,
        is_native=IS_BUILT and options.links.limit_bps is None,  # see PacedTransport
    )
    transport = connect(place.rank, place.size, master, joining)
    with _ended_by_all(transport, face), _lookout(transport, param, options, face):
        everybody = Roundtable(transport)
        _check_alike(everybody, param, options)
        _check_limit(options)
        workers = workers_of(transport, options.team.servers)
        pace = None if options.links.limit_bps is None else Pace(options.links.limit_bps)
        if workers is None:
            serve_tables(_kept_to(transport, pace), options.team.servers, options.links.limit_bps)
            return
        wire = _kept_to(workers, pace)
        table = everybody if wire is transport else Roundtable(wire)
        card = Card(transport.peers[place.rank].host, place.local_size, _cores(), options.threads, str(interface))
        cards = [Card.from_json(text) for text in table.gather_texts(card.to_json())]
        nodes = nodes_of(cards)
        is_cpu = torch.device(options.net.device).type == "cpu"  # NCCL finds the ways inside of a host itself
        sharing = share_nodes(wire, nodes) if is_cpu else Sharing(wire)
        crew = Crew(cards, nodes, threads_of(cards, nodes), sharing.problem)
        serving = _kept_to(transport, pace) if options.team.servers else None
        # Who watches several hosts is on none of them.
        options = replace(options, observe=options.observe.at(interface.address if len(set(nodes)) > 1 else ""))
        _Worker(sharing.transport, table, crew, face, serving).train(param, options, transport.vitals)
        table.meet()  # nobody leaves while another may still fail


def _kept_to(transport: Transport, pace: Pace | None) -> Transport:
    """The transport, kept to a limit if there is one."""
    return transport if pace is None or transport.size == 1 else PacedTransport(transport, pace)


def _check_alike(table: Roundtable, param: caffe_pb2.SolverParameter, options: WorkerOptions) -> None:
    """Raises on all workers if they were started differently, before they do anything that depends on it."""
    check_facts(version_facts(), table)
    net = replace(options.net, device=torch.device(options.net.device).type)  # which GPU is a worker's own affair
    asked = "start all workers with the same"
    check_facts(
        [
            *setting_facts(param, options.net.dtype, options.team.common()),
            Fact("options of the nets", lines_of(net), f"{asked} device, --freeze and --renew"),
            Fact("plan asked for", lines_of(options.request), f"{asked} --scheme, --schemes, --wire and --pattern"),
            Fact("links", lines_of(options.links), f"{asked} --bandwidth, --latency and --bandwidth-limit"),
            Fact("snapshot to go on from", str(options.resume.asked), f"{asked} --snapshot"),
            Fact("carrier of notified puts", options.one_sided, f"{asked} --one-sided"),
        ],
        table,
    )


def _check_limit(options: WorkerOptions) -> None:
    if options.links.limit_bps is not None and torch.device(options.net.device).type != "cpu":
        raise UsageError("--bandwidth-limit: what NCCL sends from GPUs cannot be limited from here; leave it out")


class _Worker:
    """One worker that has met the others. `serving`: the transport that reaches processes which only serve, if any."""

    def __init__(
        self, transport: Transport, table: Roundtable, crew: Crew, face: Face, serving: Transport | None
    ) -> None:
        self._transport, self._table, self._crew, self._face = transport, table, crew, face
        self._serving = serving
        torch.set_num_threads(self._crew.threads[table.rank])

    def train(
        self, param: caffe_pb2.SolverParameter, options: WorkerOptions, vitals: Callable[[], dict[int, Vitals]]
    ) -> None:
        solver = self._build(param, options)
        resume = agree_on_snapshot(self._table, param.snapshot_prefix, options.resume)
        planning = Planning(options.request, options.links, resume, tuple(self._crew.nodes))
        planned = plan_together(solver, self._transport, self._table, planning)
        if self._table.rank == 0:
            self._face.show(self._welcome(solver, planned, resume))
        # Whether a snapshot's plan is used is decided already: this is it, or another one is wanted.
        team = replace(options.team, reuse_plan=False)
        options.watch.follow(planned.plan)
        host = self._crew.cards[self._table.rank].host
        seat = Seat(self._table, planned.plan, cluster_facts(self._crew, planned.plan), host)
        observation = Observation(solver, options.observe, seat)
        listener = observation.heard_by(options.watch.hear_comm)
        with (
            observation,
            distribute(
                solver, self._transport, planned.plan, team, listener=listener, serving=self._serving
            ) as distribution,
        ):
            if self._table.rank == 0 and distribution.carriers:
                self._face.show([f"puts      by {distribution.carriers}"])
            if observation.lines:
                self._face.show(observation.lines)
            if self._table.rank == 0:
                cluster = planned.plan.cluster
                bandwidth = None if cluster.num_nodes == 1 else cluster.bandwidth_bps / 8
                self._face.meet(JobView(planned.plan, vitals, tuple(self._crew.nodes), bandwidth))
            solver.team = WatchedTeam(solver.team, options.watch)
            observation.join(distribution.meter)
            try:
                self._face.train(solver, resume)
            except PeerLost:
                if not planned.plan.barrier:  # behind one, what is reduced waits for us
                    solver.updates.drain()  # raises with the unit that was on its way, if there was one
                raise

    def _build(self, param: caffe_pb2.SolverParameter, options: WorkerOptions) -> Solver:
        if param.random_seed < 0:
            seeds = self._table.gather(torch.tensor(secrets.randbits(62)))
            param.random_seed = int(seeds[0])
        solver = attempt(self._table, lambda: self._solver(param, options))
        assert solver is not None, "all workers build one"
        check_facts(net_facts(solver), self._table)
        solver.writer, solver.keep, solver.job = BackgroundWriter(), options.keep, options.resume.job
        return solver

    def _solver(self, param: caffe_pb2.SolverParameter, options: WorkerOptions) -> Solver:
        if self._table.rank == 0 and param.snapshot_after_train:
            check_writable(param.snapshot_prefix)  # better now than when all the work is done
        listeners = (options.watch.hear_solver, *self._face.listeners)
        return Solver(param, options=options.net, listeners=listeners, writes=self._table.rank == 0)

    def _welcome(self, solver: Solver, planned: Planned, snapshot: str) -> list[str]:
        return [
            *cluster_lines(self._crew),
            links_line(self._crew.cards[0], planned.plan, planned.links),
            *batch_lines(solver.net, self._table.size, solver.param.iter_size),
            *plan_lines(planned.plan, snapshot if planned.is_saved else ""),
        ]


def _lookout(
    transport: C10dTransport, param: caffe_pb2.SolverParameter, options: WorkerOptions, face: Face
) -> contextlib.AbstractContextManager[object]:
    """Rank 0's, for all workers."""
    if transport.rank != 0:
        return contextlib.nullcontext()
    facts = {"job": options.resume.job, "solver": param.snapshot_prefix, "max_iter": param.max_iter}
    return Lookout(transport, Outlook(facts, param.snapshot_prefix, options.report_s, options.hang_s), face.show)


def _cores() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0)))


# -- ends -------------------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def _ended_by_all(transport: C10dTransport, face: Face) -> Iterator[None]:
    """Around a worker's life: what goes wrong here is told to the others, and what goes wrong there ends this one."""
    sentinel = _Sentinel(transport, face)
    own = transport.peers[transport.rank]
    try:
        yield
    except (WorkersFailed, WorkersDiffer) as problem:
        # All raise the same: who left before the last one has heard it would look like one more problem.
        sentinel.problem, sentinel.code = problem, MISTAKE
        with contextlib.suppress(TransportError):
            transport.barrier(END_S)
        raise
    except PeerLost as problem:
        sentinel.problem = _as_told_by_all(problem, transport)
        raise sentinel.problem from problem.__cause__
    except PoseidonError as problem:
        sentinel.problem, sentinel.code = PoseidonError(f"{own}: {problem}"), code_of(problem)
        transport.abort(str(problem))
        raise sentinel.problem from problem
    except BaseException as problem:  # a bug, Ctrl-C, no memory: the others are told whatever it is
        sentinel.problem, sentinel.code = PoseidonError(f"{own}: {type(problem).__name__}: {problem}"), CRASHED
        transport.abort(f"{type(problem).__name__}: {problem}")
        raise
    finally:
        transport.close()
    sentinel.stop()


def _as_told_by_all(problem: PeerLost, transport: C10dTransport) -> PeerLost:
    """One-sided connections that break do not tell where the other end stood, nor whether it was the first to go."""
    loss = transport.verdict(VERDICT_S)
    if loss is None or (loss.ranks == problem.ranks and loss.standing in str(problem)):
        return problem
    if loss.ranks == problem.ranks:
        return PeerLost(f"{problem} ({loss.standing})", loss.ranks)
    return PeerLost(f"{names_of(transport.peers, loss.ranks)} {loss.reason}; then: {problem}", loss.ranks)


class _Sentinel:
    """Ends the process if it is still there a moment after somebody was lost, itself included.

    `problem` is what it says then: what the worker has met itself, else who was lost; `code` is its exit code.
    """

    def __init__(self, transport: C10dTransport, face: Face) -> None:
        self.problem: PoseidonError | None = None
        self.code = LOST_ANOTHER
        self._transport, self._face = transport, face
        self._is_over = threading.Event()
        threading.Thread(target=self._watch, name="sentinel", daemon=True).start()

    def stop(self) -> None:
        self._is_over.set()

    def _watch(self) -> None:
        loss = None
        while loss is None and not self._is_over.wait(LOOK_S):
            loss = self._transport.loss("computing")
        if loss is not None and not self._is_over.wait(END_S):
            self._face.farewell(self.problem or loss)
            os._exit(self.code)
