"""A common start for workers whose solver names no random seed: all take rank 0's.

With a seed in the solver every worker draws the same by itself, and nothing is sent.
"""

from __future__ import annotations

import torch

from poseidon.comm.part import flat
from poseidon.net.net import Net
from poseidon.run.roundtable import Roundtable
from poseidon.solver import Solver
from poseidon.solver.continuation import Positioned


def take_common_seed(solver: Solver, table: Roundtable) -> None:
    """Every worker gets rank 0's seeds and parameters, unless the settings say which seed."""
    if solver.param.random_seed >= 0:
        return
    nets = [solver.net, *solver.test_nets]
    seeds = table.gather(torch.tensor([solver.seed, *(net.draws.seed for net in nets)], dtype=torch.int64))
    solver.seed, *of_nets = seeds[0].tolist()
    for net, seed in zip(nets, of_nets, strict=True):
        _reseed(net, seed)
    for entry in solver.net.learnable:
        table.copy(flat(entry.value.data))


def _reseed(net: Net, seed: int) -> None:
    net.draws.seed = seed
    for layer in net.layers.values():
        if isinstance(layer, Positioned):
            layer.seek(layer.position())  # what was shuffled by the old seed is now by this one
