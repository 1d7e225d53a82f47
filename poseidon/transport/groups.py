"""Process groups of c10d: made when they are needed, without torch's global state; broken together when a peer is lost.

Each group has connections of its own, so what travels in one never waits for another. Tensors in host memory go by
gloo, tensors on CUDA devices by NCCL.

Gloo cannot be told to stop, and an operation with a hung peer waits for its full timeout. But a receive that times out
closes all connections of its group at once: that is how `break_all` ends what is under way, within milliseconds, except
for a receive in the midst of its message, which gloo forgets to wake.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from poseidon.errors import TransportError, TransportTimeout
from poseidon.transport.base import OWN_TAGS

if TYPE_CHECKING:
    from torch.distributed import Store

BREAK_TAG = OWN_TAGS + 1


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Which group: a name that its members share, this worker's place among them, and where its tensors live."""

    name: str
    place: int
    size: int
    device: str = "cpu"


class Groups:
    """`address` is this host's, on the interface that carries the traffic."""

    def __init__(self, store: Store, address: str, join_s: float, limit_s: float) -> None:
        self._store, self._address = store, address
        self._join, self._limit = timedelta(seconds=join_s), timedelta(seconds=limit_s)
        self._lock = threading.Lock()
        self._locks: dict[GroupSpec, threading.Lock] = defaultdict(threading.Lock)
        self._made: dict[GroupSpec, Any] = {}
        self._is_broken = False

    def get(self, spec: GroupSpec) -> Any:
        """The group; at first use it is made, which waits for the other members."""
        if spec in self._made:
            return self._made[spec]
        with self._lock:
            lock = self._locks[spec]  # one each: workers may come to make several groups in different order
        with lock:
            if spec not in self._made:
                self._made[spec] = self._make(spec)
        if self._is_broken:
            self.break_all()
        return self._made[spec]

    def has(self, spec: GroupSpec) -> bool:
        return spec in self._made

    def break_all(self) -> None:
        """Ends everything under way; what waits raises."""
        self._is_broken = True
        for spec, group in list(self._made.items()):
            _BREAKERS[spec.device](spec, group)

    def _make(self, spec: GroupSpec) -> Any:
        if spec.device not in _MAKERS:
            raise TransportError(
                f"tensors on {spec.device!r} cannot travel between workers; only those on {sorted(_MAKERS)} can"
            )
        store = dist.PrefixStore(f"{spec.name}/{spec.device}", self._store)
        try:
            return _MAKERS[spec.device](self, store, spec)
        except RuntimeError as error:  # c10d has no exception of its own for this
            raise TransportTimeout(
                f"group {spec.name} of {spec.size} workers could not connect from {self._address}: {error}"
            ) from error

    def _make_gloo(self, store: Store, spec: GroupSpec) -> Any:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # missing from torch's stubs
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self._address)]
        options._timeout = self._join
        options._threads = 2
        group = dist.ProcessGroupGloo(store, spec.place, spec.size, options)
        group.set_timeout(self._limit)
        return group

    def _make_nccl(self, store: Store, spec: GroupSpec) -> Any:
        if not dist.is_nccl_available():
            raise TransportError("tensors on CUDA devices need a torch built with NCCL; this one is not")
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._limit
        return dist.ProcessGroupNCCL(store, spec.place, spec.size, options)


def _break_gloo(spec: GroupSpec, group: Any) -> None:
    for peer in range(spec.size):
        if peer != spec.place:
            try:
                group.recv([torch.empty(1, dtype=torch.uint8)], peer, BREAK_TAG).wait(timedelta(milliseconds=1))
            except RuntimeError as error:
                # A connection that is broken already raises at once, and leaves the others as they are: try the next.
                if "imed out" in str(error):
                    return


def _break_nccl(spec: GroupSpec, group: Any) -> None:
    group.abort()


_MAKERS: dict[str, Callable[[Groups, Any, GroupSpec], Any]] = {"cpu": Groups._make_gloo, "cuda": Groups._make_nccl}
_BREAKERS: dict[str, Callable[[GroupSpec, Any], None]] = {"cpu": _break_gloo, "cuda": _break_nccl}
