"""The MLP of mlp.py under PyTorch Lightning: one argument of the Trainer.

pip install 'poseidon-dl[lightning]'
torchrun --nproc-per-node 2 examples/parallel/with_lightning.py
"""

from __future__ import annotations

import argparse
import os

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from poseidon.parallel.lightning import PoseidonStrategy


class Classifier(lightning.LightningModule):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        x, labels = batch
        return F.cross_entropy(self.layers(x), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=1024)
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(10, (4096,), generator=generator)
    x = torch.randn(10, 64, generator=generator)[labels] + torch.randn(4096, 64, generator=generator)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        strategy=PoseidonStrategy(),
        max_steps=options.steps,
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier(options.width)
    trainer.fit(model, DataLoader(TensorDataset(x, labels), 32, shuffle=True))
    if trainer.global_rank == 0:
        accuracy = (model.layers(x).argmax(1) == labels).double().mean()
        print(f"after {trainer.global_step} steps: accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
