"""Agent: the launcher's hand on one host. `python -m poseidon.run.agent`, at the other end of an ssh connection.

    from the launcher                                              to the launcher
    hello    folder, environment, what workers will load           ready
    look     files, interface, towards → what is here              found     inventory, address
    port     address → a free port there                           port
    start    places of workers, their command                      line      what a worker says
    signal   to all workers                                        ended     rank, exit code
    end      kill all workers                                      over      all workers of the last start are gone
    examine, serve, measure, write       doctor's questions (`examination.py`)
    ping                                                           pong

Workers are forked by a nursery (`nursery.py`), which begins to load what they need at `hello`.

Workers do not outlive the agent, and the agent does not outlive the launcher: when its standard input ends (ssh died,
or the launcher), or nothing is heard for `SILENCE_S` (the network is cut), everything here is killed.

The secret comes in `start`, never on a command line, and goes to workers in their environment.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from poseidon.errors import PoseidonError, UsageError
from poseidon.run.births import Births
from poseidon.run.exits import CRASHED
from poseidon.run.inventory import take_inventory
from poseidon.run.launcher import free_port
from poseidon.run.messages import Inbox, Message, packed
from poseidon.run.process import WorkerProcess
from poseidon.run.rendezvous import Place, variables_of

SILENCE_S = 15.0
LOOK_S = 0.1
LAST_WORDS_S = 1.0
MAX_UNSENT_BYTES = 8 << 20
_PIECE_BYTES = 1 << 16


class Agent:
    """`reading` and `writing` are file descriptors."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._inbox, self._unsent = Inbox(), b""
        self._selector = selectors.DefaultSelector()
        self._births: Births | None = None
        self._workers: dict[int, WorkerProcess] = {}
        self._open: set[int] = set()  # ranks whose output has not ended
        self._environ: dict[str, str] = dict(os.environ)
        self._heard_s = time.monotonic()
        self._answers: dict[str, Callable[[Message], None]] = {
            "hello": self._hello,
            "look": self._look,
            "port": self._port,
            "start": self._start,
            "signal": self._signal,
            "end": lambda message: self._end(),
            "ping": lambda message: self._say("pong"),
        }

    def run(self) -> None:
        """Serves until the launcher goes away."""
        os.set_blocking(self._writing, False)
        self._selector.register(self._reading, selectors.EVENT_READ)
        try:
            while self._turn():
                pass
        finally:
            self._end()
            if self._births is not None:
                self._births.close()

    def _turn(self) -> bool:
        """Hears what is said on both sides; false when it is over."""
        for key, _ in self._selector.select(LOOK_S):
            if key.data is None:
                data = os.read(self._reading, _PIECE_BYTES)
                if not data:
                    return False
                self._heard_s = time.monotonic()
                for message in self._inbox.take(data):
                    self._obey(message)
            elif key.data is self._births:
                self._hear_nursery()
            else:
                self._relay(key.data)
        self._report_ended()
        self._flush()
        return time.monotonic() - self._heard_s < SILENCE_S

    def _obey(self, message: Message) -> None:
        kind = message["kind"]
        try:
            if kind in self._answers:
                self._answers[kind](message)
            else:
                self._examine(kind, message)
        except (PoseidonError, OSError, KeyError, TypeError, ValueError) as problem:
            text = str(problem) if isinstance(problem, PoseidonError) else f"{type(problem).__name__}: {problem}"
            self._say("problem", about=kind, text=text, number=message.get("number"))

    # -- answers ----------------------------------------------------------------------------------------------------
    def _hello(self, message: Message) -> None:
        folder = str(message["folder"])
        try:
            os.chdir(folder)
        except OSError as problem:
            raise UsageError(f"cannot work in the folder {folder}: {problem.strerror}; make it there") from None
        self._environ = {**os.environ, **{str(name): str(text) for name, text in message["environ"].items()}}
        if message.get("modules"):
            self._open_nursery([str(module) for module in message["modules"]])
        self._say("ready")

    def _look(self, message: Message) -> None:
        inventory = take_inventory(str(path) for path in message["files"])
        address = _address(message.get("interface"), str(message.get("towards") or ""))
        self._say("found", inventory=inventory.to_json(), address=address)

    def _port(self, message: Message) -> None:
        self._say("port", port=free_port(str(message["address"])))

    def _start(self, message: Message) -> None:
        self._end()
        command = [str(word) for word in message["command"]]
        added = {str(name): str(text) for name, text in message["environ"].items()}
        births = self._births or self._open_nursery([])
        for entry in message["places"]:
            place = Place(**entry, launcher_pid=os.getpid())
            births.ask(place.rank, command, variables_of(place, {**self._environ, **added}))

    def _signal(self, message: Message) -> None:
        number = signal.Signals(int(message["number"]))
        if self._births is not None:
            self._births.signal(number)
        for worker in self._workers.values():
            worker.send(number)

    def _examine(self, kind: str, message: Message) -> None:
        from poseidon.run.examination import examine  # needs more than launching does

        self._say("answer", number=message.get("number"), facts=examine(kind, message, self._environ))

    # -- workers ----------------------------------------------------------------------------------------------------
    def _open_nursery(self, modules: list[str]) -> Births:
        self._births = Births(self._environ, modules)
        self._selector.register(self._births.socket, selectors.EVENT_READ, self._births)
        return self._births

    def _hear_nursery(self) -> None:
        """A worker has come; or none can."""
        assert self._births is not None
        try:
            worker = self._births.hear()
        except EOFError:
            self._replace_nursery()
        except OSError as problem:
            self._report_unborn(str(problem))
        else:
            if worker is not None:
                assert worker.output is not None
                self._workers[worker.rank] = worker
                self._open.add(worker.rank)
                self._selector.register(worker.output, selectors.EVENT_READ, worker)

    def _replace_nursery(self) -> None:
        assert self._births is not None
        self._selector.unregister(self._births.socket)
        try:
            self._births = self._births.successor()
        except OSError as problem:
            self._report_unborn(str(problem))
            self._births.close()
            self._births = None
        else:
            self._selector.register(self._births.socket, selectors.EVENT_READ, self._births)

    def _report_unborn(self, problem: str) -> None:
        assert self._births is not None
        for rank in self._births.cancel():
            self._say("line", rank=rank, text=f"error: {problem}")
            self._say("ended", rank=rank, code=CRASHED, pid=0)

    def _relay(self, worker: WorkerProcess) -> None:
        if not worker.read(lambda line: self._say("line", rank=worker.rank, text=line)):
            self._selector.unregister(worker.output)  # type: ignore[arg-type]
            self._open.discard(worker.rank)

    def _report_ended(self) -> None:
        for rank, worker in list(self._workers.items()):
            code = worker.exit_code
            if code is not None:
                worker.end()  # what it has started ends with it
            if code is not None and rank not in self._open:
                with contextlib.suppress(KeyError):  # its output came to an end
                    self._selector.unregister(worker.output)  # type: ignore[arg-type]
                worker.close()
                del self._workers[rank]
                self._say("ended", rank=rank, code=code, pid=worker.pid)
        if self._births is not None and not self._workers:
            self._births.collect_orphans()

    def _end(self) -> None:
        """Kills all workers and what they have started; says so if there were any."""
        for rank in self._births.cancel() if self._births is not None else ():
            self._say("ended", rank=rank, code=-signal.SIGKILL, pid=0)
        for worker in self._workers.values():
            worker.end()
        deadline_s = time.monotonic() + LAST_WORDS_S
        while self._workers:
            if time.monotonic() > deadline_s:  # somebody who left the worker's session holds its output open
                self._open.clear()
            for key, _ in self._selector.select(LOOK_S):
                if isinstance(key.data, WorkerProcess):
                    self._relay(key.data)
            self._report_ended()
        self._say("over")
        self._flush()

    # -- words ------------------------------------------------------------------------------------------------------
    def _say(self, kind: str, **facts: Any) -> None:
        """Nobody must wait for the network here: what a launcher does not take is kept for it, up to a limit."""
        if len(self._unsent) < MAX_UNSENT_BYTES or kind != "line":
            self._unsent += packed(kind, **facts)
        self._flush()

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # full, or nobody is left to be told
            while self._unsent:
                self._unsent = self._unsent[os.write(self._writing, self._unsent[:_PIECE_BYTES]) :]


def _address(interface: object, towards: str) -> str:
    """This host's address on the network of the job.

    The interface that was asked for; or where ssh came in; or, where no ssh came or on loopback, the way to another.
    """
    from poseidon.transport.interface import choose_interface

    if not towards:
        return "127.0.0.1"
    came_to = os.environ.get("SSH_CONNECTION", "").split()[2:3]
    if interface is None and came_to and not came_to[0].startswith(("127.", "::1")):
        return came_to[0].partition("%")[0]
    wanted = str(interface) if interface is not None else None
    return choose_interface(towards, is_multi_host=True, wanted=wanted).address


def main() -> int:
    # A hang-up or termination ends like a launcher that goes away: SystemExit passes through `finally`.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher tells workers of it
    # Workers, and whatever else might print, must not write between messages.
    writing = os.dup(1)
    os.dup2(2, 1)
    Agent(0, writing).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
