"""What happens on one worker, in order: exchanges, layers, waits. And a transport whose operations can be held.

Log entries: comm events as they are; ("enter", layer) and ("forward", layer) around a layer's forward pass;
("backward", layer) when the diff of its top is there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from torch import Tensor

from poseidon.comm.exchange import TAGS_PER_SEND
from poseidon.net import Net
from poseidon.plan import CommPlan, Scheme, Send
from poseidon.transport import Transport, Work

PATIENCE_S = 60.0  # only what is broken takes so long


class Log:
    """Entries from several threads; whoever waits for one is woken when it comes."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self._grown = threading.Condition()

    def __call__(self, entry: Any) -> None:
        with self._grown:
            self.entries.append(entry)
            self._grown.notify_all()

    def wait_for(self, found: Callable[[Sequence[Any]], bool]) -> None:
        with self._grown:
            assert self._grown.wait_for(lambda: found(self.entries), PATIENCE_S), self.entries

    def position(self, entry: Any, occurrence: int = 0) -> int:
        return [i for i, found in enumerate(self.entries) if found == entry][occurrence]

    def of(self, kind: type) -> list[Any]:
        return [entry for entry in self.entries if type(entry) is kind]

    def watch(self, net: Net) -> None:
        """Every layer's passes from now on."""
        for name, layer in net.layers.items():
            layer.register_forward_pre_hook(lambda _, given, name=name: self(("enter", name)))
            layer.register_forward_hook(lambda _, given, made, name=name: self._made(name, made))

    def _made(self, name: str, made: Any) -> None:
        self(("forward", name))
        for top in made if isinstance(made, tuple) else (made,):
            if top.requires_grad:
                top.register_hook(lambda diff: self(("backward", name)))


class HeldWork:
    def __init__(self, inner: Work, released: threading.Event) -> None:
        self._inner, self._released = inner, released

    def wait(self, timeout_s: float | None = None) -> None:
        assert self._released.wait(PATIENCE_S), "nobody has released the operation"
        self._inner.wait(timeout_s)

    def done(self) -> bool:
        return self._released.is_set() and self._inner.done()


class HoldingTransport:
    """Passes everything on; operations of the held units are not over before `released` is set.

    Messages belong to Sends by their tag; `channels` holds only some of each. All-reduces have no tag: they come in the
    order of the plan's RING units, and nobody else may use this transport for one if there are any.
    """

    def __init__(
        self,
        inner: Transport,
        plan: CommPlan,
        units: Collection[int],
        released: threading.Event,
        channels: Collection[int] = range(TAGS_PER_SEND),
    ) -> None:
        self._inner, self._order, self._units, self._released = inner, plan.order, units, released
        self._channels = channels
        self._rings = [send for send in plan.order if plan.units[send.unit].scheme is Scheme.RING]
        self._num_rings = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(self, tensor: Tensor, to: int, tag: int) -> Work:
        return self._by_tag(self._inner.send(tensor, to, tag), tag)

    def recv(self, tensor: Tensor, source: int, tag: int) -> Work:
        return self._by_tag(self._inner.recv(tensor, source, tag), tag)

    def all_reduce(self, tensor: Tensor, group: Sequence[int] | None = None, *, tag: int | None = None) -> Work:
        work = self._inner.all_reduce(tensor, group, tag=tag)
        if not self._rings:
            return work
        send = self._rings[self._num_rings % len(self._rings)]
        self._num_rings += 1
        return self._held(work, send)

    def _by_tag(self, work: Work, tag: int) -> Work:
        place, channel = divmod(tag, TAGS_PER_SEND)
        return self._held(work, self._order[place]) if channel in self._channels else work

    def _held(self, work: Work, send: Send) -> Work:
        return HeldWork(work, self._released) if send.unit in self._units else work


def units_of(plan: CommPlan, layers: Iterable[str]) -> set[int]:
    """The units that hold a parameter of one of the layers."""
    wanted = set(layers)
    return {unit.index for unit in plan.units for name in unit.params if name.rpartition("/")[0] in wanted}
