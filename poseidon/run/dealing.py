"""Test batches dealt out over workers: each is evaluated once, and the scores are those of one worker.

    WHOLE     worker r runs batches r, r + P, …; where test_iter is no multiple of P, some have none in the last round
    PARTS     a data layer reads a part of its own (`source_r`): nobody can read whole batches. In every round each
              worker runs its part of P batches; test_iter counts up to the next multiple of P
    ALL       batches hang together, or nobody but the worker itself knows where they come from: every worker runs all
              of its own, and the scores are averaged over workers. So it is for recurrent layers, which carry states
              from batch to batch, for BatchNorm that normalises by the batch also in tests, for MemoryData, and for
              Python layers, which may keep anything

Whichever it is, the net stands afterwards where one worker's would: data positions and the clock of random draws.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

import torch
from torch import Tensor

from poseidon.errors import SolverError
from poseidon.net.layers.memory_data import MemoryData
from poseidon.net.layers.prefetched import PrefetchedLayer
from poseidon.net.layers.python import Python
from poseidon.net.net import Net
from poseidon.run.roundtable import Roundtable
from poseidon.run.shards import sharded_layers, share_batch
from poseidon.run.statistics import gathering_layers
from poseidon.solver.continuation import Carrying
from poseidon.solver.team import Sums


class Way(enum.Enum):
    """How a test net's batches are dealt out; a later one overrules an earlier one."""

    WHOLE = 0
    PARTS = 1
    ALL = 2


def choose_way(net: Net, table: Roundtable) -> Way:
    """The same on all workers, whatever each of them finds on its own disk; the net's data is shared accordingly."""
    own = table.gather(torch.tensor(_own_way(net, table).value))
    way = Way(int(own.max()))
    if way is Way.PARTS:
        share_batch(net, table.rank, table.size)
    for layer in sharded_layers(net):
        if way is Way.WHOLE:
            layer.shard(table.rank, table.size, whole_batches=True)
        elif way is Way.ALL:
            layer.shard(0, 1)
    return way


def _own_way(net: Net, table: Roundtable) -> Way:
    layers = [node.layer for node in net.graph.nodes]
    if gathering_layers(net) or any(isinstance(layer, (Carrying, MemoryData, Python)) for layer in layers):
        return Way.ALL
    for layer in layers:
        if isinstance(layer, PrefetchedLayer):
            layer.shard(table.rank, table.size)
            if layer.reads_own_part:
                return Way.PARTS
    return Way.WHOLE


class WorkerDeal:
    """One test's batches, as one of the workers sees them."""

    def __init__(self, net: Net, num_batches: int, way: Way, table: Roundtable) -> None:
        self._net = net
        self._num_batches = num_batches
        self._way = way
        self._table = table

    def rounds(self) -> Iterator[bool]:
        if self._way is Way.WHOLE:
            return self._whole_rounds()
        rounds = self._num_batches if self._way is Way.ALL else self._num_rounds
        return iter([True] * rounds)

    def _whole_rounds(self) -> Iterator[bool]:
        draws, size = self._net.draws, self._table.size
        clock = draws.clock
        layers = sharded_layers(self._net)
        starts = [layer.position()["sample"] for layer in layers]
        for first in range(0, self._num_batches, size):
            batch = first + self._table.rank
            draws.clock = clock + batch
            yield batch < self._num_batches
        draws.clock = clock + self._num_batches
        for layer, start in zip(layers, starts, strict=True):
            end = start + self._num_batches * layer.batch_size
            if layer.position()["sample"] != end:
                layer.seek({"sample": end})

    @property
    def _num_rounds(self) -> int:
        return -(-self._num_batches // self._table.size)

    def means(self, sums: Sums) -> Sums:
        outputs = self._same_shapes(sums.outputs)
        parts = [sums.loss, *outputs.values()]
        whole = torch.cat([part.detach().to("cpu", torch.float64).reshape(-1) for part in parts])
        means = (self._table.sum(whole) / self._num_evaluated).split([part.numel() for part in parts])
        loss, *values = (mean.view(part.shape) for mean, part in zip(means, parts, strict=True))
        return Sums(loss, dict(zip(outputs, values, strict=True)) if self._num_batches else {})

    @property
    def _num_evaluated(self) -> int:
        """How many batches all workers have run together."""
        if self._way is Way.WHOLE:
            return self._num_batches
        return self._table.size * (self._num_batches if self._way is Way.ALL else self._num_rounds)

    def _same_shapes(self, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The outputs, as many values of each as on all workers: zeros on one that had no batch."""
        names = self._net.outputs
        counts = [outputs[name].numel() if name in outputs else -1 for name in names]
        by_rank = self._table.gather(torch.tensor(counts, dtype=torch.int64))
        for index, name in enumerate(names):
            found = {count for count in by_rank[:, index].tolist() if count >= 0}
            if len(found) > 1:
                raise SolverError(
                    f"output {name!r} of the test net had {' and '.join(map(str, sorted(found)))} values on different "
                    "workers; its mean over a test needs the same shape in all batches"
                )
        most = by_rank.max(0).values.tolist()
        return {name: outputs.get(name, torch.zeros(max(count, 0))) for name, count in zip(names, most, strict=True)}
