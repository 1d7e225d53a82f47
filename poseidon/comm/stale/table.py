"""Table: rows of numbers that all workers of a job read and add to, at most so many clocks behind each other.

    users = tables.create("users", rows=943, width=16, staleness=2, start=0.1 * torch.randn(943, 16))

    for sweep in range(20):
        mine = users.get(rows)                 contains every update up to clock c − s − 1, my own, and possibly more
        users.inc(-rate * gradient, rows)      adds; others see it after my clock
        users.clock()                          I have finished clock c

`get` blocks only while some worker is more than s clocks behind; with s = 0 it returns exactly the sum of everybody's
updates of all finished clocks, in the same bits on all workers. `inc` and `clock` never block.

Updates leave at the clock. Those of a managed table leave by rows, when there is room for them, and at the latest
s clocks after (`lazy.py`); values come back the same way.

A table is dense (workers read all of it, and servers send all that is new) or, with `sparse=True`, read by rows: only
rows that a worker has asked for once come to it, and go when it has touched them. Either way an update travels in the
shortest of three forms: all elements, touched rows, or single elements with their places.

Every worker of the job creates the same tables in the same order; one thread of each uses them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from poseidon.comm.stale.cache import Cache, OwnUpdates
from poseidon.comm.stale.hub import Hub
from poseidon.comm.stale.layout import TableSpec
from poseidon.comm.stale.lazy import LazyTable, LazyUpdates
from poseidon.comm.stale.lazy_shard import shard_of
from poseidon.comm.stale.message import Form, Kind, Message, as_bytes
from poseidon.comm.stale.protocol import Mode, version_needed
from poseidon.comm.stale.shard import Addition, Update
from poseidon.errors import UsageError

Rows: TypeAlias = Sequence[int] | Tensor | np.ndarray


class Table:
    """Made by `create` of whoever has the hub; see the module's docstring."""

    def __init__(self, hub: Hub, spec: TableSpec, cache: OwnUpdates) -> None:
        self.spec = spec
        self._hub, self._cache = hub, cache
        self._lazy = LazyTable(hub, cache) if isinstance(cache, LazyUpdates) else None
        self._clock = 0
        self._firsts = np.array([span.first for span in spec.spans])

    def __repr__(self) -> str:
        spec = self.spec
        return f"<Table {spec.name!r}: {spec.num_rows} × {spec.width}, staleness {spec.staleness}, clock {self._clock}>"

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def shape(self) -> tuple[int, int]:
        return self.spec.num_rows, self.spec.width

    @property
    def now(self) -> int:
        """This worker's clock."""
        return self._clock

    @property
    def version(self) -> int:
        """Every worker's updates below this clock are in what `get` would return of parts that are here."""
        with self._hub.lock:
            return int(self._cache.versions.min())

    # -- the three calls --------------------------------------------------------------------------------------------
    def get(self, rows: Rows | None = None, *, staleness: int | None = None) -> Tensor:
        """A copy of these rows, in this order, or of all. `staleness`: less than the table's own, for this once."""
        behind = self.spec.staleness if staleness is None else min(staleness, self.spec.staleness)
        need = version_needed(self._clock, behind)
        if behind < self.spec.staleness:
            self.flush(behind)  # others who come as far may ask for the same
        wanted = None if rows is None else self._numbers(rows)
        if self.spec.by_rows:
            self._fetch(np.arange(self.spec.num_rows) if wanted is None else np.unique(wanted.numpy()), need)
        else:
            self._fetch_parts(wanted, need)
        with self._hub.lock:
            values = self._cache.values
            return values.clone() if wanted is None else values[wanted]

    def inc(self, delta: Tensor, rows: Rows | None = None) -> None:
        """Adds to these rows (one that stands there several times is added to as often), or to all."""
        spec = self.spec
        numbers = None if rows is None else self._numbers(rows)
        expected = (spec.num_rows if numbers is None else len(numbers), spec.width)
        if tuple(delta.shape) != expected:
            raise UsageError(f"table {spec.name!r} is to be added {expected}, got a delta of {tuple(delta.shape)}")
        given = (delta.to_dense() if delta.is_sparse else delta).detach().to("cpu", spec.torch_dtype)
        with self._hub.lock:
            if numbers is None:
                self._cache.add_all(given)
            else:
                self._cache.add(numbers, given)

    def clock(self) -> None:
        """What was added since the last clock is this clock's update; it leaves now, or (managed) so much as is due."""
        with self._hub.lock:
            if isinstance(self._cache, LazyUpdates):
                self._cache.finish_clock()
                deltas = []
            else:
                deltas = [self._cache.delta(part, self._clock) for part in range(len(self.spec.spans))]
        self._hub.post((self.spec.spans[delta.part].owner, delta) for delta in deltas)
        self._clock += 1
        self.flush(self.spec.staleness)

    def flush(self, staleness: int = 0) -> None:
        """Of a managed table: what was added so many clocks ago or before leaves now."""
        lazy = self._lazy
        if lazy is not None:
            self._hub.soon(lambda: lazy.flush(staleness))

    @property
    def _asks(self) -> bool:
        """Values do not come by themselves, or (managed) only when there is room for them."""
        return self.spec.mode is not Mode.PUSH

    # -- reading ----------------------------------------------------------------------------------------------------
    def _fetch_parts(self, wanted: Tensor | None, need: int) -> None:
        cache = self._cache
        parts = np.arange(len(self.spec.spans)) if wanted is None else np.unique(self._part_of(wanted.numpy()))
        if self._asks:
            with self._hub.lock:
                old = parts[cache.versions[parts] < need]
            self._ask((int(part), Message(Kind.READ, self.spec.index, int(part), need)) for part in old)
        self._hub.wait_for(lambda: bool((cache.versions[parts] >= need).all()), f"table {self.name!r}")

    def _fetch(self, rows: np.ndarray, need: int) -> None:
        """By rows: asks for those that are not here, or too old where they do not come by themselves; waits for all."""
        cache = self._cache
        with self._hub.lock:
            known = cache.row_versions[rows]
            missing = rows[known < (need if self._asks else 0)]
        parts = self._part_of(missing)
        self._ask((int(part), self._read_of(int(part), missing[parts == part], need)) for part in np.unique(parts))
        self._hub.wait_for(lambda: bool((cache.row_versions[rows] >= need).all()), f"table {self.name!r}")

    def _read_of(self, part: int, rows: np.ndarray, need: int) -> Message:
        numbers = torch.from_numpy(rows - self.spec.spans[part].first).to(torch.int32)
        return Message(
            Kind.READ, self.spec.index, part, need, form=Form.ROWS, count=len(rows), payload=as_bytes(numbers)
        )

    def _ask(self, reads: Iterable[tuple[int, Message]]) -> None:
        self._hub.post((self.spec.spans[part].owner, read) for part, read in reads)

    def _part_of(self, rows: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._firsts, rows, side="right") - 1

    def _numbers(self, rows: Rows) -> Tensor:
        numbers = torch.as_tensor(rows, dtype=torch.int64).reshape(-1)
        if len(numbers) and not (int(numbers.min()) >= 0 and int(numbers.max()) < self.spec.num_rows):
            raise UsageError(
                f"rows of table {self.name!r} are 0 … {self.spec.num_rows - 1}, got {int(numbers.min())} … "
                f"{int(numbers.max())}"
            )
        return numbers


# -- creating ---------------------------------------------------------------------------------------------------------
def check_start(spec: TableSpec, start: Tensor | None) -> None:
    """Raises unless a table can begin with these values."""
    if start is not None and tuple(start.shape) != (spec.num_rows, spec.width):
        raise UsageError(
            f"table {spec.name!r} starts from {spec.num_rows} × {spec.width} values, got {tuple(start.shape)}"
        )


def create_table(hub: Hub, spec: TableSpec, start: Tensor | None = None) -> Table:
    """A table that adds, on a rank that is a worker. All workers call it alike."""
    values = None if start is None else start.detach().to("cpu", spec.torch_dtype)
    cache = LazyUpdates(spec) if spec.mode is Mode.MANAGED else OwnUpdates(spec)
    if values is not None:
        cache.seed(values, 0)
    open_table(hub, spec, cache, Serving(Addition(), "", values))
    return Table(hub, spec, cache)


@dataclass(frozen=True, slots=True)
class Serving:
    """What a server needs besides a spec: what becomes of updates, as text too, for other ranks; and first values."""

    update: Update
    text: str
    values: Tensor | None


def open_table(hub: Hub, spec: TableSpec, cache: Cache, serving: Serving) -> None:
    """Makes a table known on a worker, and to the ranks that serve it."""
    parts = spec.parts_of(hub.rank)
    shard = hub.call(lambda: shard_of(hub, spec, serving.update)) if parts else None
    if shard is not None and serving.values is not None:
        for part in parts:
            shard.seed(part, 0, _of_span(serving.values, spec, part), 0)
    hub.add(spec, cache, shard)
    if hub.rank == 0:
        hub.post(_announcement(hub, spec, serving))


def _announcement(hub: Hub, spec: TableSpec, serving: Serving) -> Iterator[tuple[int, Message]]:
    """To ranks that only serve."""
    told = json.dumps({"spec": spec.to_json(), "update": serving.text}).encode()
    payload = torch.frombuffer(bytearray(told), dtype=torch.uint8)
    for owner in hub.owners:
        parts = spec.parts_of(owner) if owner >= hub.num_workers else []
        if not parts:
            continue
        yield owner, Message(Kind.CREATE, spec.index, ends=serving.values is None, payload=payload)
        if serving.values is not None:
            for part in parts:
                values = as_bytes(_of_span(serving.values, spec, part).clone())
                yield owner, Message(Kind.SEED, spec.index, part, ends=part == parts[-1], payload=values)


def _of_span(values: Tensor, spec: TableSpec, part: int) -> Tensor:
    span = spec.spans[part]
    return values.view(spec.num_rows, spec.width)[span.first : span.last]
