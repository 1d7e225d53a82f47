"""Tables: this process's part in a job that shares tables (`poseidon.Table`), with or without a net.

    with poseidon.Tables() as tables:                                  # joins the job that torchrun or srun started
        users = tables.create("users", rows=943, width=16, staleness=2)
        …

Each worker serves its share of every table. With `servers=n` the last n processes of the job do nothing else: for them
`Tables()` returns when all others are done, and `tables.is_worker` is false.

`limit="50mbit"` is what this process may use of its link, in each direction, for all tables together. Updates and
values of managed tables leave as it allows: `row_order` decides which rows first, `half_rows` narrows those that leave
early.
"""

from __future__ import annotations

import json
import os
import socket
from types import TracebackType

import torch
from torch import Tensor

from poseidon.comm.stale.hub import MEET_S, Hub, HubOptions
from poseidon.comm.stale.layout import DTYPES, TableSpec
from poseidon.comm.stale.managed import Managed, ManagedOptions, RowOrder, allowance_of
from poseidon.comm.stale.protocol import Entry, Mode
from poseidon.comm.stale.table import Table, check_start, create_table
from poseidon.errors import UsageError
from poseidon.plan import parse_bandwidth
from poseidon.run.facts import Fact, check_facts
from poseidon.run.options import ROW_ORDERS
from poseidon.run.rendezvous import find_place, secret_of
from poseidon.run.replicas import checksum
from poseidon.run.roundtable import Roundtable
from poseidon.run.servers import workers_of
from poseidon.run.stale_rule import shard_from
from poseidon.transport import Transport
from poseidon.transport.base import Peer
from poseidon.transport.c10d import C10dOptions, Master, connect
from poseidon.transport.inproc import InprocTransport, Switch
from poseidon.transport.interface import choose_interface
from poseidon.transport.native import IS_BUILT
from poseidon.transport.paced import PacedTransport
from poseidon.transport.pacing import Pace


class Tables:
    """
    servers     how many processes of the job only serve; 0: every worker serves
    limit       bits per second, as in "50mbit"; None: what the network carries
    row_order   of managed tables: "importance" (|Δ| / |w|, largest first), "random", "fifo" or "fixed"
    half_rows   of managed tables: rows that leave early do so as float16; what that loses goes later
    transport   of the job; None: found in the environment, as torchrun, srun, mpirun or `poseidon` set it
    """

    def __init__(
        self,
        *,
        servers: int = 0,
        limit: str | None = None,
        row_order: str = ROW_ORDERS[0],
        half_rows: bool = False,
        transport: Transport | None = None,
    ) -> None:
        if row_order not in ROW_ORDERS:
            raise UsageError(f"the order of rows is one of {', '.join(ROW_ORDERS)}, got {row_order!r}")
        limit_bps = None if limit is None else parse_bandwidth(limit)
        self._owns_transport = transport is None
        self._transport = _joined(limit_bps) if transport is None else transport
        workers = workers_of(self._transport, servers)
        self._table = None if workers is None else Roundtable(workers)
        order = ManagedOptions(RowOrder(row_order), half_rows, seed=self._transport.rank)
        outgoing = Managed(allowance_of(limit_bps), order)
        self._hub = Hub(self._transport, HubOptions(servers, outgoing, make_shard=shard_from))
        self._tables: list[Table] = []
        self.rank, self.num_workers = self._hub.rank, self._hub.num_workers
        if not self.is_worker:
            self.close()

    @property
    def is_worker(self) -> bool:
        return self._hub.is_worker

    def create(
        self,
        name: str,
        *,
        rows: int,
        width: int,
        staleness: int = 0,
        consistency: str = Mode.PUSH.value,
        sparse: bool = False,
        dtype: torch.dtype = torch.float32,
        start: Tensor | None = None,
    ) -> Table:
        """A new table; all workers create the same ones in the same order, together. Zeros, or what it is to `start`
        from.

        `consistency` is how values come here: "ssp" (asked for when too old), "ssp-push" (sent whenever there are new
        ones), or "ssp-managed" (rows leave when there is room for them, on both ways, and at once to who waits).
        """
        if self._table is None:
            raise UsageError(f"rank {self.rank} only serves tables and creates none; ask `is_worker` before")
        names = {kept: text for text, kept in DTYPES.items()}
        if dtype not in names:
            raise UsageError(f"the elements of table {name!r} are {' or '.join(DTYPES)}, got {dtype}")
        modes = {mode.value: mode for mode in Mode}
        if consistency not in modes:
            raise UsageError(f"the consistency of table {name!r} is one of {', '.join(modes)}, got {consistency!r}")
        mode = modes[consistency]
        spec = TableSpec(
            index=len(self._tables),
            name=name,
            num_rows=rows,
            width=width,
            num_workers=self.num_workers,
            owners=self._hub.owners,
            dtype=names[dtype],
            staleness=staleness,
            mode=mode,
            entry=Entry.ON_ARRIVAL if mode is Mode.MANAGED and staleness else Entry.WHOLE_CLOCKS,
            by_rows=sparse,
        )
        check_start(spec, start)
        check_facts([_fact_of(spec, start)], self._table)
        self._tables.append(create_table(self._hub, spec, start))
        return self._tables[-1]

    def clock(self) -> None:
        """The clock of all tables."""
        for table in self._tables:
            table.clock()

    # -- life -------------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """Finishes; returns when all workers have, since until then this process serves its share."""
        for table in self._tables:
            table.flush()
        self._end(wait=True)

    def __enter__(self) -> Tables:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if problem is None:
            self.close()
            return
        if self._owns_transport:
            self._transport.abort(f"{type(problem).__name__}: {problem}")
        self._end(wait=False)

    def _end(self, *, wait: bool) -> None:
        try:
            self._hub.close(wait=wait)
        finally:
            if self._owns_transport:
                self._transport.close()


def _fact_of(spec: TableSpec, start: Tensor | None) -> Fact:
    """What all workers must say alike of a table."""
    values = "zeros" if start is None else f"{checksum([start.detach().to('cpu', spec.torch_dtype).contiguous()]):x}"
    lines = [f"{name}: {value}" for name, value in json.loads(spec.to_json()).items()]
    text = "\n".join([*lines, f"start: {values}"])
    return Fact(f"table number {spec.index}", text, "create the same tables in the same order on all workers")


def _joined(limit_bps: float | None) -> Transport:
    """The transport of the job that the environment tells of; of one process if it tells of none."""
    place = find_place(os.environ)
    if place is None:
        return InprocTransport(Switch((Peer(0, socket.gethostname(), os.getpid()),), limit_s=MEET_S), 0)
    is_multi_host = place.local_size is not None and place.local_size < place.size
    interface = choose_interface(place.master_address, is_multi_host=is_multi_host, wanted=None)
    master = Master(place.master_address, place.master_port, place.store_prefix)
    is_native = IS_BUILT and limit_bps is None  # see PacedTransport
    options = C10dOptions(address=interface.address, secret=secret_of(os.environ), is_native=is_native)
    transport = connect(place.rank, place.size, master, options)
    return transport if limit_bps is None else PacedTransport(transport, Pace(limit_bps))
