"""Which records of the train net are whose: P workers together read what one worker with the P-fold batch would.

    Data, ImageData, WindowData, HDF5Data   worker r reads samples r, r + P, … of every P-fold batch (data/shard.py)
                                            or, dealt out by speed, as many as its count says (balance.py)
    DummyData, Dropout, random crops …      drawn for those same samples (net/draws.py)
    MemoryData, Python layers as sources    nobody else knows what they hold: each worker is fed its own data

The losses are told how many workers share a batch, so that one normalised by the number of valid labels divides by the
number on all workers. A loss of another kind that is a sum over the batch, not a mean (a Reduction, a Python layer), is
averaged over workers all the same.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from poseidon.errors import UsageError
from poseidon.net.layers.hdf5_output import HDF5Output
from poseidon.net.layers.loss import LossLayer
from poseidon.net.net import Net
from poseidon.run.roundtable import Roundtable


@runtime_checkable
class Sharded(Protocol):
    """A layer that can read a worker's share of the records."""

    batch_size: int

    def shard(
        self, rank: int, num_workers: int, *, whole_batches: bool = False, counts: tuple[int, ...] = ()
    ) -> None: ...

    def position(self) -> dict[str, int]: ...

    def seek(self, position: dict[str, int]) -> None: ...


def share_batch(net: Net, rank: int, size: int, counts: tuple[int, ...] = ()) -> None:
    """The net's batches are from now on worker `rank`'s part of batches `size` times as large; `counts`: parts of
    unequal length."""
    net.draws.first, net.draws.stride = (sum(counts[:rank]), 1) if counts else (rank, size)
    for layer in sharded_layers(net):
        layer.shard(rank, size, counts=counts)


def count_labels_together(
    net: Net, table: Roundtable | None, num_parts: float | None = None, *, waits: bool = True
) -> None:
    """Losses divide as one worker with the whole batch would, given that gradients are averaged; None: by their own.

    `num_parts`: how many parts like this worker's the whole batch has, where they are not all alike. `waits`: false
    where nobody may wait for others' counts: valid labels are each worker's own then.
    """
    for node in net.graph.nodes:
        if isinstance(node.layer, LossLayer):
            if table is None:
                node.layer.count_over_workers(1, None)
            else:
                node.layer.count_over_workers(num_parts or table.size, table.sum if waits else None)


def sharded_layers(net: Net) -> list[Sharded]:
    return [node.layer for node in net.graph.nodes if not node.bottoms and isinstance(node.layer, Sharded)]


def check_outputs(net: Net) -> None:
    """Refuses layers that would have all workers write to one file."""
    for node in net.graph.nodes:
        if isinstance(node.layer, HDF5Output):
            raise UsageError(
                f"{node.layer.context.where}: layer {node.layer.name!r} (HDF5Output) writes to one file, which several "
                "workers cannot; take it out, or train with one worker"
            )
