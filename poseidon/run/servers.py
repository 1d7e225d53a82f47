"""Processes of a job that only serve parameters: the last ones (`--servers`). They need no net and no data."""

from __future__ import annotations

from poseidon.comm.stale.hub import Hub, HubOptions
from poseidon.comm.stale.managed import Managed, allowance_of
from poseidon.errors import UsageError
from poseidon.run.stale_rule import shard_from
from poseidon.transport import Transport


def workers_of(transport: Transport, num_servers: int) -> Transport | None:
    """The transport of those processes that train; None where this one only serves."""
    if num_servers == 0:
        return transport
    num_workers = transport.size - num_servers
    if num_workers < 1:
        raise UsageError(f"--servers {num_servers} of {transport.size} processes leave no worker; start more of them")
    return transport.subgroup(range(num_workers))


def serve_tables(transport: Transport, num_servers: int, limit_bps: float | None = None) -> None:
    """Serves until all workers have finished. `limit_bps`: what this process may send."""
    outgoing = Managed(allowance_of(limit_bps))
    Hub(transport, HubOptions(num_servers, outgoing, make_shard=shard_from)).close()
