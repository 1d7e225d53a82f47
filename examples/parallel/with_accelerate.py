"""The MLP of mlp.py with Hugging Face Accelerate: everything is prepared but the model, which Parallel wraps.

pip install 'poseidon-dl[accelerate]'
accelerate launch --cpu --num_processes 2 examples/parallel/with_accelerate.py
torchrun --nproc-per-node 2 examples/parallel/with_accelerate.py
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import poseidon


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=1024)
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(10, (4096,), generator=generator)
    x = torch.randn(10, 64, generator=generator)[labels] + torch.randn(4096, 64, generator=generator)

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    network = nn.Sequential(nn.Linear(64, options.width), nn.ReLU(), nn.Linear(options.width, 10))
    model = poseidon.Parallel(network.to(accelerator.device))  # instead of accelerator.prepare(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    optimizer, loader = accelerator.prepare(optimizer, DataLoader(TensorDataset(x, labels), 32, shuffle=True))

    step = 0
    while step < options.steps:
        for batch, wanted in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(batch), wanted)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            step += accelerator.sync_gradients
            if step == options.steps:
                break
    accuracy = (model(x).argmax(1) == labels).double().mean()
    accelerator.print(f"after {step} steps: accuracy {accuracy:.3f}")
    model.close()


if __name__ == "__main__":
    main()
