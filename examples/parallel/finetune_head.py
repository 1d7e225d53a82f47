"""Fine-tuning the classifier of a network whose features stay as they are; then all of it, for a few steps.

    torchrun --nproc-per-node 2 examples/parallel/finetune_head.py

Frozen parameters do not travel. When they are unfrozen, on all workers in the same iteration, the plan is made anew.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poseidon


class Network(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(), nn.Flatten()
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Linear(16 * 36, width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--width", type=int, default=1024)
    options = parser.parse_args()
    rank = int(os.environ.get("RANK", 0))
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    prototypes = torch.randn(10, 1, 28, 28, generator=torch.Generator().manual_seed(1))

    network = Network(options.width)
    network.features.requires_grad_(False)  # in a real run: loaded from a checkpoint
    model = poseidon.Parallel(network, schemes={"classifier.*": "factors"})
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    for step in range(options.steps):
        if step == options.steps // 2:
            if rank == 0:
                print(model.plan)
            network.features.requires_grad_(True)
        labels = torch.randint(10, (16,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(prototypes[labels] + torch.randn(16, 1, 28, 28)), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if rank == 0 and step in (options.steps // 2 - 1, options.steps - 1):
            print(f"step {step + 1}: loss {loss.item():.4f}")
    if rank == 0:
        print(model.plan)
    model.close()


if __name__ == "__main__":
    main()
