"""What MpiEndpoint uses of mpi4py, played inside one process: bytes move at a flush, messages lie in boxes.

`World.seen_by(rank)` is the module `MPI` as a worker sees it. `hold`: a flush does not return while it is set, as if
the target were lost; `mistake`: what the next put raises.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np


class World:
    def __init__(self, size: int) -> None:
        self.size = size
        self.boxes: list[deque[tuple[int, int, np.ndarray]]] = [deque() for _ in range(size)]
        self.free = threading.Barrier(size)
        self.hold = threading.Event()
        self.released = threading.Event()
        self.mistake: Exception | None = None
        self.num_freed = 0
        self.log: list[tuple[str, int]] = []

    def seen_by(self, rank: int) -> Any:
        return SimpleNamespace(
            COMM_WORLD=_Comm(self, rank),
            Win=SimpleNamespace(Create_dynamic=lambda comm: _Window(self)),
            Status=_Status,
            Get_address=lambda memory: memory.ctypes.data,
            BYTE="byte",
            INT64_T="int64",
            ANY_SOURCE=-1,
            ANY_TAG=-1,
        )


class _Status:
    source = tag = -1

    def Get_source(self) -> int:  # noqa: N802 (MPI's names, here and below)
        return self.source

    def Get_tag(self) -> int:  # noqa: N802
        return self.tag


class _Comm:
    def __init__(self, world: World, rank: int) -> None:
        self._world, self.rank, self.size = world, rank, world.size

    def Dup(self) -> _Comm:  # noqa: N802
        return self

    def Iprobe(self, source: int, tag: int, status: _Status) -> bool:  # noqa: N802
        box = self._world.boxes[self.rank]
        if box:
            status.source, status.tag, _ = box[0]
        return bool(box)

    def Recv(self, buffer: list[Any], source: int, tag: int) -> None:  # noqa: N802
        found_source, found_tag, values = self._world.boxes[self.rank].popleft()
        assert (found_source, found_tag) == (source, tag)
        buffer[0][:] = values

    def Isend(self, buffer: list[Any], rank: int, tag: int) -> SimpleNamespace:  # noqa: N802
        self._world.boxes[rank].append((self.rank, tag, buffer[0].copy()))
        return SimpleNamespace(Test=lambda: True, Wait=lambda: None)


class _Window:
    def __init__(self, world: World) -> None:
        self._world = world
        self._pending: list[tuple[int, int, int]] = []

    def Lock_all(self) -> None: ...  # noqa: N802

    def Unlock_all(self) -> None: ...  # noqa: N802

    def Attach(self, memory: np.ndarray) -> None: ...  # noqa: N802

    def Put(self, origin: list[Any], rank: int, target: tuple[int, int, str]) -> None:  # noqa: N802
        if self._world.mistake is not None:
            raise self._world.mistake
        self._world.log.append(("put", target[1]))
        self._pending.append((target[0], origin[0].ctypes.data, target[1]))

    def Get(self, origin: list[Any], rank: int, target: tuple[int, int, str]) -> None:  # noqa: N802
        self._pending.append((origin[0].ctypes.data, target[0], target[1]))

    def Flush(self, rank: int) -> None:  # noqa: N802
        if self._world.hold.is_set():
            self._world.released.wait(30.0)
        for to, source, num_bytes in self._pending:
            ctypes.memmove(to, source, num_bytes)
        self._pending.clear()

    def Free(self) -> None:  # noqa: N802
        self._world.free.wait(10.0)
        self._world.num_freed += 1
