"""Handwriting-like digits by a wide MLP, on as many workers as you start.

    torchrun --nproc-per-node 2 examples/parallel/mlp.py
    python examples/parallel/mlp.py                         # one worker, for comparison

The digits are drawn here: ten prototypes and noise, so that nothing has to be downloaded. Two lines differ from a
script for one process: Parallel and overlap. The plan is printed at the end: on a slow network the gradients of wide
layers travel as factors, many times smaller than the dense ones.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poseidon


def batches(rank: int, batch: int, num_features: int) -> tuple[Tensor, Tensor]:
    """A worker's next batch: noisy copies of ten prototypes, the same for all workers."""
    prototypes = torch.randn(10, num_features, generator=torch.Generator().manual_seed(1))
    labels = torch.randint(10, (batch,))
    return prototypes[labels] + 2.0 * torch.randn(batch, num_features), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    rank = int(os.environ.get("RANK", 0))
    torch.manual_seed(rank)  # each worker draws its own batches; weights are rank 0's
    torch.set_num_threads(1)

    width = options.width
    model = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    model = poseidon.Parallel(model)
    optimizer = poseidon.overlap(torch.optim.SGD(model.parameters(), 0.02, momentum=0.9), model)

    for step in range(options.steps):
        x, labels = batches(rank, options.batch, 784)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        if rank == 0 and step in (options.steps // 2, options.steps - 1):
            print(f"step {step + 1}: loss {loss.item():.4f}")
    if rank == 0:
        print(model.plan)
    model.close()


if __name__ == "__main__":
    main()
