"""Roundtable: where the workers of a job compare and add up small things, all at the same point of their loops.

Messages go through a group of their own, so that they never meet the exchanges of gradients that other threads have
under way. Only the thread that computes may use it: then all workers call in the same order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from poseidon.errors import WorkersDiffer
from poseidon.transport import Peer, Transport, Work
from poseidon.transport.collectives import all_gather

_TEXT_TAG = 1  # all-gathers have 0
_TENSOR_TAG = 2
_PAIR_TAG = 3
_ROW_TAG = 4


class Roundtable:
    """Every call waits for all workers. Results are the same bits on all of them. `waited_s` is how long calls took."""

    def __init__(self, transport: Transport) -> None:
        group = transport.subgroup(range(transport.size))
        assert group is not None, "every worker is in the group of all"
        self._group: Transport = group
        self.rank, self.size = transport.rank, transport.size
        self.peers: tuple[Peer, ...] = transport.peers
        self.waited_s = 0.0

    def start_sum(self, tensor: Tensor) -> Work:
        """Begins to replace a tensor of one axis by the sum over workers; `wait` for it before it is read."""
        return self._group.all_reduce(tensor)

    def start_gather(self, rows: Tensor) -> Work:
        """Begins to fill the rows of the others, by rank, straight from each; this worker's is there already. For
        few bytes that nobody should wait for: `wait` before they are read."""
        each = rows.unbind()
        others = [(self.rank + step) % self.size for step in range(1, self.size)]
        arrivals = [self._group.recv(each[other], other, _ROW_TAG) for other in others]
        return _All([*arrivals, *(self._group.send(each[self.rank], other, _ROW_TAG) for other in others)])

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over workers, of tensors of one shape and type."""
        total = tensor.detach().reshape(-1).clone()
        self._wait(self.start_sum(total))
        return total.view(tensor.shape)

    def gather(self, tensor: Tensor) -> Tensor:
        """Every worker's tensor, stacked in rank order."""
        rows = tensor.new_empty(self.size, tensor.numel())
        rows[self.rank] = tensor.detach().reshape(-1)
        self._wait(all_gather(self._group, list(rows)))
        return rows.view(self.size, *tensor.shape)

    def gather_texts(self, text: str) -> list[str]:
        """Every worker's text, by rank."""
        data = text.encode()
        lengths = self.gather(torch.tensor(len(data))).tolist()
        blocks = [torch.empty(length, dtype=torch.uint8) for length in lengths]
        blocks[self.rank] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else blocks[self.rank]
        self._wait(all_gather(self._group, blocks))
        return [block.numpy().tobytes().decode() for block in blocks]

    def collect_texts(self, text: str) -> list[str]:
        """The same at rank 0 alone; the others get none. For texts that may be long."""
        data = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
        lengths = self.gather(torch.tensor(data.numel())).tolist()
        if self.rank != 0:
            self._wait(self._group.send(data, 0, _TEXT_TAG))
            return []
        texts = [text]
        for rank in range(1, self.size):
            block = torch.empty(lengths[rank], dtype=torch.uint8)
            self._wait(self._group.recv(block, rank, _TEXT_TAG))
            texts.append(block.numpy().tobytes().decode())
        return texts

    def collect_tensors(self, named: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """Everybody's tensors by name, copied to host memory, at rank 0 alone; the others get none."""
        labels = {name: [str(tensor.dtype).removeprefix("torch."), *tensor.shape] for name, tensor in named.items()}
        by_rank = [json.loads(text) for text in self.collect_texts(json.dumps(labels))]
        if self.rank != 0:
            for tensor in named.values():
                self._wait(self._group.send(tensor.detach().cpu().contiguous().view(-1), 0, _TENSOR_TAG))
            return []
        found = [{name: tensor.detach().to("cpu", copy=True) for name, tensor in named.items()}]
        for rank in range(1, self.size):
            theirs = {}
            for name, (dtype, *shape) in by_rank[rank].items():
                theirs[name] = torch.empty(shape, dtype=getattr(torch, dtype))
                self._wait(self._group.recv(theirs[name].view(-1), rank, _TENSOR_TAG))
            found.append(theirs)
        return found

    def mean(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Each tensor averaged over workers, in double precision and in host memory."""
        parts = [value.detach().to("cpu", torch.float64).reshape(-1) for value in values]
        whole = torch.cat(parts)
        counts = self.gather(torch.tensor(whole.numel()))
        if (counts != counts[0]).any():
            raise WorkersDiffer(
                f"net outputs are averaged over workers and need the same shape on all, got {counts.tolist()} values "
                "on ranks 0, 1, …; let Silence take the outputs whose shape depends on the data",
                tuple(torch.nonzero(counts != counts[0]).view(-1).tolist()),
            )
        means = (self.sum(whole) / self.size).split([part.numel() for part in parts])
        return [mean.view(value.shape) for mean, value in zip(means, values, strict=True)]

    def copy(self, tensor: Tensor, root: int = 0) -> None:
        """Puts one worker's values into everybody's tensor, which has one axis and lies in one piece."""
        self._wait(self._group.broadcast(tensor, root))

    def _wait(self, work: Work) -> None:
        begun_s = time.perf_counter()
        work.wait()
        self.waited_s += time.perf_counter() - begun_s

    def tell(self, tensor: Tensor, to: int) -> None:
        """Sends one worker a tensor of one axis, which it hears. These two concern nobody else."""
        self._group.send(tensor, to, _PAIR_TAG).wait()

    def hear(self, tensor: Tensor, source: int) -> None:
        """Fills a tensor with what a worker tells."""
        self._group.recv(tensor, source, _PAIR_TAG).wait()

    def meet(self) -> None:
        """Returns when all have come here."""
        self.sum(torch.zeros(1))


class _All:
    """Several works as one."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works

    def wait(self, timeout_s: float | None = None) -> None:
        for work in self._works:
            work.wait(timeout_s)

    def done(self) -> bool:
        return all(work.done() for work in self._works)
