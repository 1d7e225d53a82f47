"""Which records of a net are a worker's when several extract features: as in tests, whole batches are dealt out, or
each worker has a part of the data of its own. Workers exchange nothing, so none waits for another."""

from __future__ import annotations

import os

import torch

from poseidon.errors import UsageError
from poseidon.net.layers.memory_data import MemoryData
from poseidon.net.layers.prefetched import PrefetchedLayer
from poseidon.net.layers.python import Python
from poseidon.net.net import Net
from poseidon.run.rendezvous import Place
from poseidon.run.shards import check_outputs, sharded_layers, share_batch
from poseidon.run.statistics import gathering_layers
from poseidon.solver.continuation import Carrying
from poseidon.tools.features import Deal


def deal_records(net: Net, place: Place) -> Deal:
    """Lets the net's data layers read what is this worker's."""
    check_outputs(net)
    for node in net.graph.nodes:
        if isinstance(node.layer, (Carrying, MemoryData, Python)):
            raise UsageError(
                f"{node.layer.context.where}: layer {node.layer.name!r} ({node.layer.type_name}) hangs on all batches "
                "in their order, or on what nobody else knows; extract features with one worker"
            )
    layers = sharded_layers(net)
    for layer in layers:
        layer.shard(place.rank, place.size, whole_batches=True)
    own_part = any(isinstance(layer, PrefetchedLayer) and layer.reads_own_part for layer in layers)
    if own_part:
        if gathering_layers(net):
            raise UsageError(
                f"{net.source.filename}: BatchNorm here normalises by the batch, and with parts of the data batches "
                "are others; extract features with one worker"
            )
        share_batch(net, place.rank, place.size)
    return Deal(place.rank, place.size, own_part)


def divide_cores(place: Place) -> None:
    """The workers of a host compute with its cores, not each with all of them."""
    if place.local_size is not None and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // place.local_size))
