"""Examination: what doctor, status and kill ask of a host; answered by its agent.

examine   names to resolve, folder, port → devices, memory, interfaces, names, port, disk
clock     → seconds since the epoch
serve     address → a port where others may measure the way to this host; it proves the job's secret
measure   address, port → latency and bandwidth of the way there
status    → what running jobs tell
kill      job ("": all) → processes that were ended
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from poseidon.errors import TransportError, UsageError
from poseidon.run.leftovers import kill_jobs
from poseidon.run.messages import Message
from poseidon.run.rendezvous import secret_of
from poseidon.run.status import read_statuses, status_folder
from poseidon.transport.door import Door, listen
from poseidon.transport.handshake import Key, call
from poseidon.transport.interface import addresses

PURPOSE = "doctor"
NUM_PINGS = 30
MEASURE_S = 0.4
SERVE_S = 120.0
DISK_S = 1.0
DISK_BYTES = 64 << 20

_PIECE = 1 << 18
_LENGTH = struct.Struct(">Q")


def examine(kind: str, message: Message, environ: Mapping[str, str]) -> dict[str, Any]:
    """The answer to one question."""
    answers: dict[str, Callable[[Message, Mapping[str, str]], dict[str, Any]]] = {
        "examine": _examine,
        "clock": lambda asked, environ: {"now": time.time()},
        "serve": _serve,
        "measure": _measure,
        "status": lambda asked, environ: {"jobs": read_statuses(status_folder(os.environ))},
        "kill": lambda asked, environ: {"ended": kill_jobs(str(asked.get("job") or ""))},
    }
    if kind not in answers:
        raise UsageError(f"an agent of this version does not know the question {kind!r}; install the same everywhere")
    return answers[kind](message, environ)


# -- the host ---------------------------------------------------------------------------------------------------------
def _examine(message: Message, environ: Mapping[str, str]) -> dict[str, Any]:
    port = message.get("port")
    return {
        "devices": _devices(),
        "interfaces": {address: name for address, name in addresses().items() if not address.startswith("fe80")},
        "names": {str(name): _resolved(str(name)) for name in message["names"]},
        "port": "" if port is None else _port_problem(str(message["address"]), int(port)),
        "disk": _disk(Path(str(message["folder"]))),
    }


def _devices() -> dict[str, Any]:
    gpus: list[str] = []
    try:
        import torch

        gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        problem = ""
    except Exception as error:  # whatever keeps torch from loading is what is to be told
        problem = f"{type(error).__name__}: {error}"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cores": len(os.sched_getaffinity(0)), "memory_bytes": memory, "gpus": gpus, "torch_problem": problem}


def _resolved(name: str) -> str:
    """An address, or a problem that begins with an exclamation mark."""
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as problem:
        return f"!{problem.strerror or problem}"


def _port_problem(address: str, port: int) -> str:
    family = socket.getaddrinfo(address, port)[0][0]
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
            probe.listen(1)
    except OSError as problem:
        return str(problem.strerror)
    return ""


def _disk(folder: Path) -> dict[str, Any]:
    """Free space, and the speed of writing: as much as goes in a second, on the disk and not only in memory."""
    probe = folder / f".poseidon-doctor-{os.getpid()}"
    try:
        free = shutil.disk_usage(folder).free
        written, began_s = 0, time.monotonic()
        with probe.open("wb") as file:
            while written < min(DISK_BYTES, free // 2) and time.monotonic() - began_s < DISK_S:
                written += file.write(bytes(_PIECE))
            file.flush()
            os.fsync(file.fileno())
        return {"free_bytes": free, "bps": 8 * written / max(time.monotonic() - began_s, 1e-6), "problem": ""}
    except OSError as problem:
        return {"free_bytes": 0, "bps": 0.0, "problem": f"{folder}: {problem.strerror}", "missing": not folder.is_dir()}
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


# -- links ------------------------------------------------------------------------------------------------------------
def _serve(message: Message, environ: Mapping[str, str]) -> dict[str, Any]:
    listener = listen(str(message["address"]))
    port = listener.getsockname()[1]
    door = Door([listener], Key(secret_of(environ), PURPOSE), 1)
    threading.Thread(target=_receive, args=(door,), name="doctor", daemon=True).start()
    return {"port": port}


def _receive(door: Door) -> None:
    deadline_s = time.monotonic() + SERVE_S
    while time.monotonic() < deadline_s:
        member = door.admit(deadline_s - time.monotonic())
        if member is not None:
            threading.Thread(target=_echo, args=(member[1],), name="doctor", daemon=True).start()
    door.close()


def _echo(connection: socket.socket) -> None:
    """Answers each length, followed by so many bytes, with the length; ends with its caller."""
    with connection, contextlib.suppress(OSError):
        connection.settimeout(10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = bytearray(_PIECE)
        while head := _exactly(connection, _LENGTH.size):
            (left,) = _LENGTH.unpack(head)
            while left:
                left -= connection.recv_into(buffer, min(left, _PIECE)) or left
            connection.sendall(head)


def _exactly(connection: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        piece = connection.recv(num_bytes - len(data))
        if not piece:
            return b""
        data += piece
    return data


def _measure(message: Message, environ: Mapping[str, str]) -> dict[str, Any]:
    address, port = str(message["address"]), int(message["port"])
    try:
        with socket.create_connection((address, port), 5) as connection:
            call(connection, Key(secret_of(environ), PURPOSE), 0)
            connection.settimeout(20)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            times_s = sorted(_passed_s(connection, b"") for _ in range(NUM_PINGS))
            piece, sent, took_s = bytes(_PIECE), 0, 0.0
            while took_s < MEASURE_S:
                took_s += _passed_s(connection, piece)
                sent += len(piece)
            return {"latency_s": times_s[len(times_s) // 2] / 2, "bps": 8 * sent / took_s}
    except (OSError, TransportError) as problem:
        raise TransportError(f"cannot reach {address} port {port}: {problem}") from None


def _passed_s(connection: socket.socket, data: bytes) -> float:
    """The time until the other side has so many bytes and says so."""
    began_s = time.perf_counter()
    connection.sendall(_LENGTH.pack(len(data)) + data)
    if not _exactly(connection, _LENGTH.size):
        raise TransportError("the connection ended in the midst of a measurement")
    return time.perf_counter() - began_s
