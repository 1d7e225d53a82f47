"""Managed: a message scheduler that keeps to a budget and spends what is spare of it on what matters most.

Letters that must go (a clock's rest, answers, values that somebody waits for) go first, as `InOrder` sends them. When
none waits and the budget allows, something goes that need not go yet, in turns:

    early deltas    rows of this worker's updates that wait for the clock, the most important first (`RowOrder`)
    pending values  the newest values of a part, to a worker that has older ones

Both are made at the moment they leave: a row that waited through several clocks takes the sum of its deltas along in
one piece, and values that were overtaken by newer ones never travel. Letters are short, so what becomes urgent
meanwhile waits for one of them at most: PIECE_S of the budget, but no less than LETTER_BYTES, below which making
letters would take longer than sending them.

    importance    |Δ| / |w| of the row, largest first        fifo     the row that has waited longest
    random        any, drawn from a seed                     fixed    by number, round and round

A budget is for the network: what goes to ranks that share memory with this one is neither counted nor held up.
Without tables in managed mode it is a plain budget: letters leave by urgency, when they may, and wait here until then,
where more urgent ones can still pass them.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from poseidon.comm.stale.outgoing import DeltaSource, InOrder, Letter, ValueSource, Waiting
from poseidon.transport.pacing import MIN_PIECE_BYTES, PIECE_S, WIRE_SHARE, TokenBucket

LETTER_BYTES = 32 << 10
MOST_LETTER_BYTES = 240 << 10  # one slot of a mailbox holds it
# So much of the budget may be handed to links at once, when this thread was kept from its work for a while. They keep
# to the limit themselves, and have something to send when it is kept from its work again.
AHEAD_S = 0.1
CHOSEN = 8  # letters at least, when rows are chosen
PASSES = 8  # over what waits, at most, until all of it has left
TINY = 1e-12  # a row of zeros may still learn


class RowOrder(enum.Enum):
    """Which rows leave first. The value is how people write it."""

    IMPORTANCE = "importance"
    RANDOM = "random"
    FIFO = "fifo"
    FIXED = "fixed"


class Allowance(Protocol):
    """How much may be sent, and in what portions."""

    @property
    def letter_bytes(self) -> int: ...

    def delay_s(self, now_s: float) -> float | None:
        """Seconds until something may be sent; 0: now. None: time alone does not help."""

    def spend(self, num_bytes: int, now_s: float) -> None: ...


class Unlimited:
    @property
    def letter_bytes(self) -> int:
        return LETTER_BYTES

    def delay_s(self, now_s: float) -> float | None:
        return 0.0

    def spend(self, num_bytes: int, now_s: float) -> None:
        """As much as you like."""


class PerSecond:
    """So many bits per second, headers of the network included."""

    def __init__(self, limit_bps: float) -> None:
        rate = limit_bps / 8
        self._bucket: TokenBucket | None = None
        self._rate, self._burst = rate, max(rate * AHEAD_S, MIN_PIECE_BYTES)

    @property
    def letter_bytes(self) -> int:
        return int(min(max(LETTER_BYTES, self._rate * PIECE_S), MOST_LETTER_BYTES))

    def delay_s(self, now_s: float) -> float | None:
        return self._at(now_s).delay(now_s)

    def spend(self, num_bytes: int, now_s: float) -> None:
        self._at(now_s).spend(num_bytes / WIRE_SHARE, now_s)

    def _at(self, now_s: float) -> TokenBucket:
        if self._bucket is None:
            self._bucket = TokenBucket(self._rate, self._burst, now_s)
        return self._bucket


def allowance_of(limit_bps: float | None) -> Allowance:
    """None: as much as the network carries."""
    return Unlimited() if limit_bps is None else PerSecond(limit_bps)


class PerClock:
    """So many bytes per clock of this worker, for experiments that shall not depend on how fast anything is. What must
    go goes all the same, and is paid back from later clocks."""

    def __init__(self, num_bytes: float) -> None:
        self._per_clock = num_bytes
        self._left = num_bytes

    @property
    def letter_bytes(self) -> int:
        return LETTER_BYTES

    def tick(self) -> None:
        self._left = min(self._left + self._per_clock, self._per_clock)

    def delay_s(self, now_s: float) -> float | None:
        return 0.0 if self._left > 0 else None

    def spend(self, num_bytes: int, now_s: float) -> None:
        self._left -= num_bytes


@dataclass(frozen=True, slots=True)
class ManagedOptions:
    """`half`: early rows travel as float16; what that loses goes later. `seed` is for the order RANDOM."""

    order: RowOrder = RowOrder.IMPORTANCE
    half: bool = False
    seed: int = 0


class Managed:
    """A MessageScheduler (`outgoing.py`); see the module's docstring."""

    def __init__(self, allowance: Allowance, options: ManagedOptions | None = None) -> None:
        self.allowance = allowance
        self._options = options or ManagedOptions()
        self._must = InOrder()
        self._sources: deque[DeltaSource] = deque()
        self._values: deque[ValueSource] = deque()
        self._random = np.random.RandomState(self._options.seed)
        self._next_row: dict[int, int] = {}  # of the order FIXED, by table
        self._values_turn = False
        self._neighbours: frozenset[int] = frozenset()
        # Rows that leave next, a letter of them each: to neighbours (true), and over the network.
        self._chosen: dict[bool, deque[tuple[DeltaSource, np.ndarray]]] = {True: deque(), False: deque()}
        self.num_early = 0  # rows that have left ahead of their clock

    # -- the protocol -----------------------------------------------------------------------------------------------
    def put(self, letter: Letter) -> None:
        self._must.put(letter)

    def take(self, ready: Collection[int], now_s: float) -> Letter | None:
        near = [rank for rank in ready if rank in self._neighbours]
        far = [rank for rank in ready if rank not in self._neighbours]
        may_send = self.allowance.delay_s(now_s) == 0
        letter = self._must.take([*near, *far] if may_send or isinstance(self.allowance, PerClock) else near, now_s)
        if letter is None:
            letter = self._spare(near, now_s, near=True)
        if letter is None and may_send:
            letter = self._spare(far, now_s, near=False)
        return letter

    def _spare(self, ready: Collection[int], now_s: float, *, near: bool) -> Letter | None:
        """Something that need not go yet. What must go waits, if at all, for a mailbox that is full: others' are not
        held up for that."""
        if not ready:
            return None
        for _ in range(2):
            self._values_turn = not self._values_turn
            letters = self._pending(ready) if self._values_turn else self._early(ready, near=near)
            if letters:
                for more in letters:
                    self._must.put(more)
                return self._must.take(ready, now_s)
        return None

    def due_s(self, now_s: float) -> float | None:
        delay_s = self.allowance.delay_s(now_s)
        if not delay_s:  # now, or not by itself: something else has to happen first
            return None
        has_more = self._must.num_waiting or any(source.num_waiting() for source in self._sources)
        return delay_s if has_more or any(source.num_pending() for source in self._values) else None

    def sent(self, letter: Letter, now_s: float) -> None:
        if letter.to not in self._neighbours:
            self.allowance.spend(letter.num_bytes, now_s)

    def know(self, neighbours: Collection[int]) -> None:
        self._neighbours = frozenset(neighbours)

    def register(self, source: DeltaSource) -> None:
        self._sources.append(source)

    def register_values(self, source: ValueSource) -> None:
        self._values.append(source)

    @property
    def num_waiting(self) -> int:
        return self._must.num_waiting

    # -- what need not go yet ---------------------------------------------------------------------------------------
    def _pending(self, ready: Collection[int]) -> list[Letter]:
        for _ in range(len(self._values)):
            source = self._values[0]
            self._values.rotate(-1)
            letters = source.letters_to(ready, self.allowance.letter_bytes)
            if letters:
                return letters
        return []

    def _early(self, ready: Collection[int], *, near: bool) -> list[Letter]:
        """Some rows of a table, as many as one letter holds. To look at everything that waits costs a pass over it:
        what several letters hold is chosen at once."""
        chosen = self._chosen[near]
        if not chosen:
            chosen.extend(self._choose(ready))
        while chosen:
            source, rows = chosen.popleft()
            letters = source.letters(rows, half=self._options.half)
            if letters:
                self.num_early += len(rows)
                self._next_row[source.table] = int(rows[-1]) + 1
                return letters
        return []

    def _choose(self, ready: Collection[int]) -> list[tuple[DeltaSource, np.ndarray]]:
        """Rows of all tables compete with each other, one by one; those of a table to one server travel together."""
        sources, rows, owners, scores, sizes = [], [], [], [], []
        for source in self._sources:
            if source.num_waiting() == 0:
                continue
            waiting = source.waiting()
            chosen = np.flatnonzero(np.isin(waiting.owners, list(ready)) & (waiting.magnitudes > 0))
            if len(chosen) == 0:
                continue
            rows.append(waiting.rows[chosen])
            owners.append(waiting.owners[chosen])
            scores.append(self._scores(source.table, waiting)[chosen])
            sizes.append(np.full(len(chosen), waiting.row_bytes))
            sources.append(source)
        if not sources:
            return []
        tables = np.repeat(np.arange(len(sources)), [len(own) for own in rows])
        first = np.argsort(-np.concatenate(scores), kind="stable")
        room = np.cumsum(np.concatenate(sizes)[first])
        letter_bytes = self.allowance.letter_bytes
        most_bytes = max(CHOSEN * letter_bytes, int(room[-1]) // PASSES)
        first = first[: max(1, np.searchsorted(room, most_bytes, "right"))]
        counts = [max(1, letter_bytes // int(size[0])) for size in sizes]
        ways = np.stack((tables, np.concatenate(owners)), 1)[first]
        return [(sources[table], own) for table, own in _in_letters(ways, np.concatenate(rows)[first], counts)]

    def _scores(self, table: int, waiting: Waiting) -> np.ndarray:
        """Of every row that waits: the highest goes first."""
        order, scores = self._options.order, np.empty(len(waiting.rows))
        if order is RowOrder.IMPORTANCE:
            scores[:] = waiting.magnitudes / (waiting.weights + TINY)
        elif order is RowOrder.RANDOM:
            scores[:] = self._random.random_sample(len(scores))
        elif order is RowOrder.FIFO:
            scores[:] = -waiting.since
        else:
            behind = waiting.rows < self._next_row.get(table, 0)  # those come in the next round
            scores[:] = -(waiting.rows + behind * (1 + waiting.rows.max()))
        return scores


def _in_letters(ways: np.ndarray, rows: np.ndarray, counts: Sequence[int]) -> list[tuple[int, np.ndarray]]:
    """Rows in the order of their importance, each of a table and to a server (`ways`), as letters in the order of their
    first rows, with their table; so many rows to a letter, by table."""
    found: list[tuple[int, int, np.ndarray]] = []
    for table, owner in np.unique(ways, axis=0):
        places = np.flatnonzero((ways[:, 0] == table) & (ways[:, 1] == owner))
        for start in range(0, len(places), counts[table]):
            letter = places[start : start + counts[table]]
            found.append((int(letter[0]), int(table), rows[letter]))
    found.sort(key=lambda entry: entry[0])
    return [(table, letter) for _, table, letter in found]
