"""Meeting: the transport of a Parallel, found or made.

    a process group exists (torchrun, Slurm, mpirun; gloo or NCCL)   ours runs beside it, on connections of its own
    the environment tells of one (RANK, WORLD_SIZE, … or Slurm's)    workers meet there
    neither                                                          this process is alone

Several hosts: the interface is GLOO_SOCKET_IFNAME's, if that is set, else the one on the way to MASTER_ADDR or rank 0.
Workers prove the job's secret to each other if the environment has one (POSEIDON_SECRET).
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from poseidon.run.rendezvous import find_place, lead_nccl, secret_of
from poseidon.transport import Transport
from poseidon.transport.c10d import C10dOptions, Master, connect, from_group
from poseidon.transport.interface import Interface, choose_interface

_HOST_BYTES = 320
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def meet(process_group: Any, device: torch.device) -> Transport | None:
    """The transport among all workers; None if this process is alone."""
    if process_group is not None or dist.is_initialized():
        return _beside(process_group or dist.group.WORLD, device)
    place = find_place(os.environ)
    if place is None:
        return None
    is_multi_host = place.local_size is not None and place.local_size < place.size
    interface = _interface(place.master_address, is_multi_host)
    lead_nccl(os.environ, interface.name)
    master = Master(place.master_address, place.master_port, place.store_prefix)
    return connect(place.rank, place.size, master, _options(interface.address))


def _beside(group: Any, device: torch.device) -> Transport | None:
    if group.size() == 1:
        return None
    carrier = device if "nccl" in str(dist.get_backend(group)) else torch.device("cpu")
    hosts = _hosts(group, carrier)
    master = os.environ.get("MASTER_ADDR") or hosts[0].split()[0]
    is_multi_host = len(set(hosts)) > 1
    address = _interface(master, is_multi_host).address if is_multi_host else "127.0.0.1"
    return from_group(group, _options(address), str(carrier))


def _interface(master: str, is_multi_host: bool) -> Interface:
    wanted = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0] or None
    return choose_interface(master, is_multi_host=is_multi_host, wanted=wanted)


def _options(address: str) -> C10dOptions:
    return C10dOptions(address=address, secret=secret_of(os.environ))


def _hosts(group: Any, device: torch.device) -> list[str]:
    """Everybody's host, by rank: its name, and what tells hosts of one name apart (containers often have one)."""
    own = torch.zeros(_HOST_BYTES, dtype=torch.uint8)
    boot = _BOOT.read_text().strip() if _BOOT.exists() else ""
    name = f"{socket.gethostname()} {boot}".encode()[:_HOST_BYTES]
    own[: len(name)] = torch.frombuffer(bytearray(name), dtype=torch.uint8)
    own = own.to(device)
    found = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(found, own, group=group)
    return [bytes(entry.cpu().tolist()).rstrip(b"\0").decode() for entry in found]
