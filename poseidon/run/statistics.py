"""BatchNorm's running statistics on several workers.

While training, each worker normalises by the statistics of its own batch, and gathers those: all three blobs differ
between workers. Before a test and before a snapshot they are averaged. That changes nothing in training, which does not
read them, and little in what follows: the running sums are linear, so the mean of what workers gather is the same
whether it is taken sooner or later.

With synchronised statistics (`sync_bn`) every worker normalises by those of the P-fold batch, and there is nothing to
average: the blobs are the same bits on all. BN, the forks' layer, gathers likewise, but knows no synchronising.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from poseidon.net.layers.batch_norm import BatchNorm
from poseidon.net.layers.bn import BN
from poseidon.net.net import Net
from poseidon.run.roundtable import Roundtable


def gathering_layers(net: Net) -> list[BatchNorm]:
    """The layers whose statistics change with every batch."""
    layers = [node.layer for node in net.graph.nodes]
    return [layer for layer in layers if isinstance(layer, BatchNorm) and not layer.use_global_stats]


def gathered_blobs(net: Net) -> list[Tensor]:
    """The statistics of all layers that gather some, each once."""
    return [blob.detach() for blob in {id(blob): blob for blob in _gathered(net)}.values()]


def _gathered(net: Net) -> list[nn.Parameter]:
    own = [layer.param_owner(index) for layer in gathering_layers(net) for index in range(3)]
    return own + [layer.param_owner(index) for layer in _forks_layers(net) for index in (2, 3)]


def _forks_layers(net: Net) -> list[BN]:
    layers = [node.layer for node in net.graph.nodes]
    return [layer for layer in layers if isinstance(layer, BN) and layer.has_running and not layer.uses_running]


def average_statistics(net: Net, table: Roundtable) -> None:
    """Brings every worker's statistics to the mean over workers."""
    blobs = gathered_blobs(net)
    if blobs:
        for blob, mean in zip(blobs, table.mean(blobs), strict=True):
            blob.copy_(mean)


def synchronise_statistics(net: Net, table: Roundtable | None) -> None:
    """Batch statistics become those of all workers' batches together; None: each worker's own again."""
    for other in _forks_layers(net) if table is not None else ():
        raise other.error("has statistics that cannot be synchronised (--sync-bn); write it as BatchNorm and Scale")
    for layer in gathering_layers(net):
        layer.over_workers(None if table is None else table.gather)


def holds_statistics(net: Net, value: torch.nn.Parameter) -> bool:
    """True for a blob that may differ between workers while they train."""
    return any(value is blob for blob in _gathered(net))
