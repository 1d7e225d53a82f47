"""Controller: a job on several hosts, from its start to its end, restarts included.

    connect     an agent on each host, over ssh; hosts that lack something are named before any worker starts
    generation  workers on all hosts that are ready; their lines are shown, with their rank; signals are passed on
    end         all workers succeeded, or one failed, or a host was lost: then the others get a moment to notice by
                themselves and say why, and are ended
    restart     if that was a failure, and restarts are left: a new generation on the hosts that are left, which goes on
                from the job's newest good snapshot. A host that returns, whoever else is still missing, makes the
                running generation yield: it writes a snapshot and stops, and the next one has the host again

Workers tell by their exit codes why they ended (`exits.py`). A mistake of the user's is no reason to restart: the next
generation would meet it again. A host that cannot start workers, or is lost while it is asked to, is a failure as any.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from poseidon.run.exits import LOST_ANOTHER, MISTAKE, YIELDED
from poseidon.run.fleet import Fleet, refuse
from poseidon.run.hosts import Host, num_workers
from poseidon.run.launcher import END_S, NOTICE_S, gathered_signals
from poseidon.run.messages import Message
from poseidon.run.rendezvous import RESTART, SECRET, Place
from poseidon.run.site import Entry, Site

WAIT_S = 120.0  # for hosts to return when too few are left
LEFT_S = 1.5  # between the ends of workers that notice the same
GATHER_S = 2.0  # for a host that was lost for a moment only
_MOST_INTERRUPTS = 3
_STOPS = (signal.SIGINT, signal.SIGTERM)

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Recovery:
    """`min_workers`: None: as many as there are places."""

    max_restarts: int = 0
    min_workers: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """`command` is what every worker runs; `secret` is the job's."""

    program: str
    command: tuple[str, ...]
    hosts: tuple[Host, ...]
    entry: Entry
    secret: str = field(repr=False)
    recovery: Recovery = field(default_factory=Recovery)


@dataclass(slots=True)
class _Generation:
    """One set of workers: where they run, and how those that ended did. `refused`: sites that could not start any."""

    sites: list[Site]
    size: int
    codes: dict[int, int] = field(default_factory=dict)
    lost: list[Site] = field(default_factory=list)
    refused: list[Site] = field(default_factory=list)
    failed_s: float | None = None
    ended_s: float = 0.0  # when the last worker ended
    is_yielding: bool = False
    is_ended: bool = False

    @property
    def is_over(self) -> bool:
        return all(not site.ranks for site in self.sites if site.is_ready)

    @property
    def is_failed(self) -> bool:
        return bool(self.lost or self.refused) or any(code not in (0, YIELDED) for code in self.codes.values())

    @property
    def is_mistake(self) -> bool:
        is_theirs = min(self.codes.values(), default=0) >= 0 and MISTAKE in self.codes.values()
        return is_theirs and not self.lost and not self.refused

    def exit_code(self) -> int:
        """That of a worker that a signal ended, or of another one that failed; of a host that is lost or refuses, 1."""
        bad = [code for code in self.codes.values() if code not in (0, YIELDED)]
        if not bad:
            return 1 if self.lost or self.refused else 0
        worst = min(bad) if min(bad) < 0 else next((code for code in bad if code != LOST_ANOTHER), bad[0])
        return worst if worst >= 0 else 128 - worst


def run_cluster(job: ClusterJob, tell: Tell) -> int:
    """Runs a job to its end; returns an exit code. `tell` shows the user a line."""
    with gathered_signals() as waiting, Fleet(job.hosts, job.entry) as fleet:
        problems = fleet.gather(lambda: _stop_in(waiting) is not None)
        stop = _stop_in(waiting)
        if stop is not None:
            return 128 + stop
        refuse(problems)
        return _Controller(job, fleet, waiting, tell).run()


def _stop_in(waiting: Sequence[signal.Signals]) -> signal.Signals | None:
    """The first signal that asks for the end."""
    return next((number for number in waiting if number in _STOPS), None)


class _Controller:
    def __init__(self, job: ClusterJob, fleet: Fleet, waiting: list[signal.Signals], tell: Tell) -> None:
        self._job, self._fleet, self._waiting, self._tell = job, fleet, waiting, tell
        self._num_restarts = self._num_interrupts = 0
        self._number = 0
        self._is_asked_to_stop = False
        self._port: int | None = None

    def run(self) -> int:
        while True:
            generation = self._start()
            self._attend(generation)
            code = generation.exit_code()
            if not generation.is_failed and not (generation.is_yielding and YIELDED in generation.codes.values()):
                return code
            if self._is_asked_to_stop or (generation.is_failed and not self._may_restart(generation)):
                return code
            self._number += 1
            if not self._await_hosts():
                return code or 1

    def _may_restart(self, generation: _Generation) -> bool:
        most = self._job.recovery.max_restarts
        if generation.is_mistake or self._num_restarts >= most:
            if most and not generation.is_mistake:
                self._say(f"all {most} restarts are used up")
            return False
        self._num_restarts += 1
        self._say(f"restart {self._num_restarts} of {most}, from the newest good snapshot of this job that is left")
        return True

    def _await_hosts(self) -> bool:
        """Gives hosts that were lost for a moment that moment, and waits longer if too few are left."""
        least = self._job.recovery.min_workers or num_workers(self._fleet.hosts)
        began_s, is_told = time.monotonic(), False
        while True:
            present = num_workers([site.host for site in self._fleet.ready])
            waited_s = time.monotonic() - began_s
            if len(self._fleet.ready) == len(self._fleet.sites) or (present >= least and waited_s > GATHER_S):
                return True
            if waited_s > WAIT_S or self._has_stop_request():
                self._say(f"error: {present} of {least} workers have a host; {self._absent()}")
                return False
            if waited_s > GATHER_S and not is_told:
                is_told = True
                self._say(f"waiting for hosts: {present} of at least {least} workers have one; {self._absent()}")
            self._fleet.retry()
            self._fleet.pump(self._ignore)

    def _absent(self) -> str:
        return "; ".join(f"host {site.host.name} {site.problem}" for site in self._fleet.sites if not site.is_ready)

    # -- a generation -----------------------------------------------------------------------------------------------
    def _start(self) -> _Generation:
        sites = self._fleet.ready
        generation = _Generation(sites, num_workers([site.host for site in sites]))
        port = sites[0].host.port or self._free_port(generation)
        if port is not None:
            self._start_workers(generation, port)
        return generation

    def _start_workers(self, generation: _Generation, port: int) -> None:
        environ = {SECRET: self._job.secret, RESTART: str(self._number)}
        address, rank = generation.sites[0].address, 0
        for site in generation.sites:
            places = []
            for local_rank in range(site.host.slots):
                place = Place(rank, generation.size, local_rank, site.host.slots, address, port)
                places.append({name: value for name, value in asdict(place).items() if name != "launcher_pid"})
                site.ranks.add(rank)
                rank += 1
            site.say("start", command=list(self._job.command), environ=environ, places=places)

    def _free_port(self, generation: _Generation) -> int | None:
        """Of the first host; None if that fails or nobody waits for it any more: the generation has failed then."""
        site, found = generation.sites[0], list[int]()

        def hear(speaker: Site, message: Message) -> None:
            if speaker is site and message["kind"] == "port":
                found.append(int(message["port"]))
            else:
                self._hear(generation, speaker, message)

        site.say("port", address=site.address)
        while not found and not generation.refused:
            self._fleet.pump(hear)
            stop = _stop_in(self._waiting)
            if stop is not None:
                self._is_asked_to_stop = True
                generation.codes[0] = -stop  # as if it had ended the worker that is not there yet
                return None
            if not site.is_ready:
                generation.lost.append(site)
                self._say(f"error: host {site.host.name} {site.problem}")
                return None
        return found[0] if found else None

    def _attend(self, generation: _Generation) -> None:
        """Until all of its workers have ended, or are out of reach."""
        while not generation.is_over:
            self._fleet.pump(lambda site, message: self._hear(generation, site, message))
            self._pass_on_signals(generation)
            self._notice_lost(generation)
            if generation.failed_s is not None:
                self._end_late(generation)
            elif generation.is_failed:
                generation.failed_s = time.monotonic()
            else:
                self._fleet.retry()
                self._welcome_back(generation)
        for site in generation.sites:
            site.ranks.clear()

    def _hear(self, generation: _Generation, site: Site, message: Message) -> None:
        if message["kind"] == "line" and message.get("rank") in site.ranks:
            self._tell(f"rank {message['rank']}: {message.get('text')}")
        elif message["kind"] == "ended" and message.get("rank") in site.ranks:
            rank, code = int(message["rank"]), int(message["code"])
            site.ranks.discard(rank)
            generation.codes[rank], generation.ended_s = code, time.monotonic()
            if code < 0 and not self._is_asked_to_stop and not generation.is_ended:
                name = signal.Signals(-code).name
                guess = "; was the memory of that host used up?" if name == "SIGKILL" else ""
                self._say(
                    f"error: rank {rank} (host {site.host.name}, pid {message.get('pid')}) was ended by {name}{guess}"
                )

        elif message["kind"] == "problem" and message.get("about") in ("port", "start"):
            generation.refused.append(site)
            self._say(f"error: host {site.host.name} cannot start workers: {message.get('text')}")
            site.say("end")  # some of them may be there
            site.ranks.clear()

    def _ignore(self, site: Site, message: Message) -> None:
        """Between generations nobody has anything to say that matters."""

    def _notice_lost(self, generation: _Generation) -> None:
        for site in generation.sites:
            if not site.is_ready and site.ranks and site not in generation.lost:
                generation.lost.append(site)
                ranks = ", ".join(map(str, sorted(site.ranks)))
                self._say(f"error: host {site.host.name} (rank {ranks}) {site.problem}")

    def _end_late(self, generation: _Generation) -> None:
        assert generation.failed_s is not None
        now_s = time.monotonic()
        is_late = now_s - generation.failed_s > NOTICE_S + END_S
        # Once the others have noticed and gone, who is left does not listen.
        is_alone = LOST_ANOTHER in generation.codes.values() and now_s - generation.ended_s > LEFT_S
        if (is_late or is_alone) and not generation.is_ended:
            generation.is_ended = True
            for site in generation.sites:
                site.say("end")

    def _welcome_back(self, generation: _Generation) -> None:
        """Hosts that the generation began without and that are there now: it makes room for them."""
        present = {site.host for site in generation.sites}
        names = ", ".join(site.host.name for site in self._fleet.ready if site.host not in present)
        if names and not generation.is_yielding:
            generation.is_yielding = True
            self._say(f"host {names} is back: snapshot, and on with it")
            for site in generation.sites:
                site.say("signal", number=int(signal.SIGUSR1))

    # -- signals ----------------------------------------------------------------------------------------------------
    def _has_stop_request(self) -> bool:
        self._is_asked_to_stop |= _stop_in(self._waiting) is not None
        return self._is_asked_to_stop

    def _pass_on_signals(self, generation: _Generation) -> None:
        while self._waiting:
            number = self._waiting.pop(0)
            if number is signal.SIGTSTP:
                continue  # hosts elsewhere cannot be put to sleep together with this one
            self._is_asked_to_stop |= number in _STOPS
            self._num_interrupts += number is signal.SIGINT
            for site in generation.sites:
                site.say("signal", number=int(number))
            if self._num_interrupts >= _MOST_INTERRUPTS and not generation.is_ended:
                generation.is_ended = True
                self._say("interrupted again: all workers are ended")
                for site in generation.sites:
                    site.say("end")

    def _say(self, text: str) -> None:
        self._tell(f"{self._job.program}: {text}")
