"""Tables: this process's part in a job that shares tables (`poseidon.Table`), with or without a net.

    with poseidon.Tables() as tables:                                  # joins the job that torchrun or srun started
        users = tables.create("users", rows=943, width=16, staleness=2)
        …

Each worker serves its share of every table. With `servers=n` the last n processes of the job do nothing else: for them
`Tables()` returns when all others are done, and `tables.is_worker` is false.
"""

from __future__ import annotations

import os
import socket
from types import TracebackType

import torch
from torch import Tensor

from poseidon.comm.stale.hub import MEET_S, Hub, HubOptions
from poseidon.comm.stale.layout import DTYPES, TableSpec
from poseidon.comm.stale.protocol import Entry, Mode
from poseidon.comm.stale.table import Table, create_table
from poseidon.errors import UsageError
from poseidon.run.rendezvous import find_place, secret_of
from poseidon.transport import Transport
from poseidon.transport.base import Peer
from poseidon.transport.c10d import C10dOptions, Master, connect
from poseidon.transport.inproc import InprocTransport, Switch
from poseidon.transport.interface import choose_interface


class Tables:
    """
    servers     how many processes of the job only serve; 0: every worker serves
    transport   of the workers; None: found in the environment, as torchrun, srun, mpirun or `poseidon` set it
    """

    def __init__(self, *, servers: int = 0, transport: Transport | None = None) -> None:
        self._owns_transport = transport is None
        self._transport = _joined() if transport is None else transport
        self._hub = Hub(self._transport, HubOptions(num_servers=servers))
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
        """A new table; all workers create the same ones in the same order. Zeros, or what it is to `start` from.

        `consistency` is how values come here: "ssp" (asked for when too old), "ssp-push" (sent whenever there are new
        ones), or "ssp-managed" (as that, and updates are added as they arrive, before the clock too).
        """
        if not self.is_worker:
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
            entry=Entry.ON_ARRIVAL if mode is Mode.MANAGED else Entry.WHOLE_CLOCKS,
            by_rows=sparse,
        )
        self._tables.append(create_table(self._hub, spec, start))
        return self._tables[-1]

    def clock(self) -> None:
        """The clock of all tables."""
        for table in self._tables:
            table.clock()

    # -- life -------------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """Finishes; returns when all workers have, since until then this process serves its share."""
        self._end(wait=True)

    def __enter__(self) -> Tables:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if problem is not None and self._owns_transport:
            self._transport.abort(f"{type(problem).__name__}: {problem}")
        self._end(wait=problem is None)

    def _end(self, *, wait: bool) -> None:
        try:
            self._hub.close(wait=wait)
        finally:
            if self._owns_transport:
                self._transport.close()


def _joined() -> Transport:
    """The transport of the job that the environment tells of; of one process if it tells of none."""
    place = find_place(os.environ)
    if place is None:
        return InprocTransport(Switch((Peer(0, socket.gethostname(), os.getpid()),), limit_s=MEET_S), 0)
    is_multi_host = place.local_size is not None and place.local_size < place.size
    interface = choose_interface(place.master_address, is_multi_host=is_multi_host, wanted=None)
    master = Master(place.master_address, place.master_port, place.store_prefix)
    return connect(place.rank, place.size, master, C10dOptions(address=interface.address, secret=secret_of(os.environ)))
