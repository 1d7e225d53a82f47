"""Health: who is lost, found out within seconds and told to everybody.

A star of TCP connections beside the data, rank 0 in the middle. Every worker gives a sign of life each `interval_s`.

    connection ends without goodbye     that process died              noticed at once
    silence for `limit_s`               it hangs, or is cut off        noticed after limit_s (+ interval_s)
    "lost: …" from the worker itself    it gives up and says why       noticed at once
    `declare` at rank 0                 somebody else has found it out

Rank 0 hears the workers and tells everybody the first loss; the workers watch rank 0 themselves. The first verdict
stays: what breaks afterwards (survivors ending their connections) is a consequence. A process that was itself asleep
for a while does not blame the others for what it could not hear.

Messages are JSON, one per line:

    {"kind": "beat", "vitals": …}                      sign of life, and where its worker stands (`vitals.py`)
    {"kind": "lost", "ranks": [3], "reason": …, "standing": …}   verdict
    {"kind": "bye", "rank": 2}                         leaves in peace
    {"kind": "stacks?"}, {"kind": "stacks", "text": …} rank 0 asks what a worker's threads do just now

How the star is built: `joining.py`.
"""

from __future__ import annotations

import json
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from poseidon.transport.base import Peer
from poseidon.transport.stacks import all_stacks
from poseidon.transport.vitals import Vitals, VitalsSource, no_vitals

MAX_LINE_BYTES = 1 << 18
MAX_UNSENT_BYTES = 1 << 20
MAX_REASON_CHARS = 2000


@dataclass(frozen=True, slots=True)
class HealthOptions:
    interval_s: float = 0.5
    limit_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Loss:
    """Who is lost, and how that showed. `reason` continues a sentence that starts with their names; `standing`, a part
    of it, tells where they stood, if they ever said so."""

    ranks: tuple[int, ...]
    reason: str
    standing: str = ""


@dataclass(slots=True)
class Line:
    """One connection of the star, and what is known of its other end."""

    rank: int
    socket: socket.socket
    heard_s: float = 0.0
    unread: bytes = b""
    unsent: bytes = b""
    is_open: bool = True
    vitals: Vitals | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, message: dict[str, object]) -> None:
        """Sends what is possible without waiting, the rest later; whoever takes nothing is found by its silence."""
        with self.lock:
            if len(self.unsent) < MAX_UNSENT_BYTES:
                self.unsent += json.dumps(message).encode() + b"\n"
            try:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]
            except OSError:
                return

    def hear(self) -> list[dict[str, object]] | None:
        """The messages that have arrived; None if the connection has ended."""
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data or len(self.unread) + len(data) > MAX_LINE_BYTES:
            return None
        *lines, self.unread = (self.unread + data).split(b"\n")
        return [_parse(line) for line in lines]


class Health:
    """`lines` are this worker's connections: rank 0's to everybody, the others' to rank 0.

    `on_loss` is called once, on whichever thread comes to the verdict.
    """

    def __init__(
        self,
        rank: int,
        peers: tuple[Peer, ...],
        lines: list[Line],
        options: HealthOptions,
        on_loss: Callable[[], None],
        own_vitals: VitalsSource = no_vitals,
    ) -> None:
        self._rank, self._peers, self._options, self._on_loss = rank, peers, options, on_loss
        self._own_vitals = own_vitals
        self._stacks: dict[int, str] = {}
        self._lines = {line.rank: line for line in lines}
        self._news = threading.Condition()
        self._loss: Loss | None = None
        self._left: set[int] = set()
        self._stop_reader, self._stop_writer = socket.socketpair()
        for line in lines:
            line.socket.setblocking(False)
        self._thread = threading.Thread(target=self._watch, name=f"health-{rank}", daemon=True)
        self._thread.start()

    @property
    def loss(self) -> Loss | None:
        return self._loss

    def cause(self, ranks: tuple[int, ...], grace_s: float) -> Loss | None:
        """Why an operation with `ranks` broke: the verdict, for which `grace_s` may be waited, or that one has left."""
        with self._news:
            self._news.wait_for(lambda: self._loss or self._left.intersection(ranks), grace_s)
            if self._loss is not None:
                return self._loss
            gone = tuple(sorted(self._left.intersection(ranks)))
            return Loss(gone, "left the job before that was over") if gone else None

    def vitals(self) -> dict[int, Vitals]:
        """Where workers stand, by rank, this one included: what was last heard of them."""
        found = {rank: line.vitals for rank, line in self._lines.items()} | {self._rank: self._own_vitals()}
        return {rank: vitals for rank, vitals in sorted(found.items()) if vitals is not None}

    def ask_stacks(self, timeout_s: float) -> dict[int, str]:
        """What the threads of the workers do just now, as far as they answer in time; this worker's included."""
        with self._news:
            self._stacks = {self._rank: all_stacks()}
        self._tell({"kind": "stacks?"})
        with self._news:
            self._news.wait_for(lambda: len(self._stacks) > len(self._lines) or self._loss is not None, timeout_s)
            return dict(sorted(self._stacks.items()))

    def give_up(self, reason: str) -> None:
        """Tells everybody that this worker is lost to them."""
        self._conclude(Loss((self._rank,), f"gave up: {reason[:MAX_REASON_CHARS]}"))

    def declare(self, ranks: tuple[int, ...], how: str) -> None:
        """Rank 0's: tells everybody that these are lost, itself perhaps; `how` that showed."""
        self._lose(ranks, how)

    def close(self) -> None:
        for line in self._lines.values():
            line.say({"kind": "bye", "rank": self._rank})
        self._stop_writer.close()
        if self._thread is not threading.current_thread():
            self._thread.join(self._options.limit_s)
        for line in self._lines.values():
            line.socket.close()

    def _watch(self) -> None:
        interval_s = self._options.interval_s
        with selectors.DefaultSelector() as selector, self._stop_reader:
            selector.register(self._stop_reader, selectors.EVENT_READ)
            for line in self._lines.values():
                selector.register(line.socket, selectors.EVENT_READ, line)
            beaten_s = awake_s = time.monotonic()
            self._forgive(awake_s)
            while self._loss is None:
                ready = selector.select(interval_s / 2)
                now_s = time.monotonic()
                if now_s - awake_s > 2 * interval_s:
                    self._forgive(now_s)
                awake_s = now_s
                for key, _ in ready:
                    if key.data is None:
                        return
                    self._listen(key.data, now_s)
                    if not key.data.is_open:
                        selector.unregister(key.fileobj)
                if now_s - beaten_s >= interval_s:
                    beaten_s = now_s
                    vitals = self._own_vitals()
                    self._tell({"kind": "beat"} | ({} if vitals is None else {"vitals": vitals.to_json()}))
                self._judge(now_s)

    def _listen(self, line: Line, now_s: float) -> None:
        line.heard_s = now_s
        messages = line.hear()
        if messages is None:
            line.is_open = False
            if line.rank not in self._left:
                self._lose((line.rank,), "the process ended, its connection closed")
            return
        for message in messages:
            self._take(line, message)

    def _take(self, line: Line, message: dict[str, object]) -> None:
        ranks, rank = message.get("ranks"), message.get("rank")
        if message.get("kind") == "lost" and isinstance(ranks, list):
            known = tuple(rank for rank in ranks if rank in range(len(self._peers)))
            self._conclude(Loss(known, str(message.get("reason")), str(message.get("standing") or "")))
        elif message.get("kind") == "bye" and isinstance(rank, int):
            with self._news:
                self._left.add(rank)
                self._news.notify_all()
            if self._rank == 0:
                self._tell(message)
        elif message.get("kind") == "beat":
            line.vitals = Vitals.from_json(message.get("vitals")) or line.vitals
        elif message.get("kind") == "stacks?":
            line.say({"kind": "stacks", "text": all_stacks()})
        elif message.get("kind") == "stacks":
            with self._news:
                self._stacks[line.rank] = str(message.get("text"))
                self._news.notify_all()

    def _judge(self, now_s: float) -> None:
        """Silence beyond the limit is a loss. Whoever is silent nearly as long went down with it: workers of a host."""
        silent_s = {line.rank: now_s - line.heard_s for line in self._lines.values() if line.rank not in self._left}
        if silent_s and max(silent_s.values()) > self._options.limit_s:
            nearly_s = self._options.limit_s - 2 * self._options.interval_s
            ranks = tuple(rank for rank, seconds in silent_s.items() if seconds > nearly_s)
            silence = f"no sign of life for {max(silent_s.values()):.1f} s"
            self._lose(ranks, f"{silence}, so it hangs, or its host or network is down")

    def _lose(self, ranks: tuple[int, ...], how: str) -> None:
        known = self.vitals()
        found = [(rank, known.get(rank)) for rank in ranks]
        told = [f"rank {rank}: {vitals}" if len(ranks) > 1 else str(vitals) for rank, vitals in found if vitals]
        standing = "; ".join(told)
        self._conclude(Loss(ranks, f"is lost: {how}{f' ({standing})' if standing else ''}", standing))

    def _forgive(self, now_s: float) -> None:
        for line in self._lines.values():
            line.heard_s = now_s

    def _conclude(self, loss: Loss) -> None:
        with self._news:
            if self._loss is not None:
                return
            self._loss = loss
            self._news.notify_all()
        # Told before anything is torn down here: a survivor must not take our broken connections for the cause.
        if self._rank == 0 or loss.ranks == (self._rank,):
            verdict = {"ranks": list(loss.ranks), "reason": loss.reason, "standing": loss.standing}
            self._tell({"kind": "lost", **verdict})
        self._on_loss()

    def _tell(self, message: dict[str, object]) -> None:
        for line in self._lines.values():
            if line.is_open:
                line.say(message)


def _parse(line: bytes) -> dict[str, object]:
    """A message; an empty one if the line is none."""
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}
