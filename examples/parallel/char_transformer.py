"""A character transformer whose embedding is larger than all the rest: hashed n-grams of the text so far.

    torchrun --nproc-per-node 2 examples/parallel/char_transformer.py

Each position reads, beside its character, the rows of its last three and five characters in a table of 2¹⁸ hashes. A
batch touches a few thousand of them: these rows travel, not the table. The text is this file.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import poseidon

GRAMS = (3, 5)


class CharTransformer(nn.Module):
    def __init__(self, num_hashes: int, width: int) -> None:
        super().__init__()
        self.num_hashes = num_hashes
        self.characters = nn.Embedding(256, width)
        self.grams = nn.Embedding(num_hashes, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:
        x = self.characters(text)
        for length in GRAMS:
            x = x + self.grams(self._hashes(text, length))
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        return self.out(self.layers(x, mask=mask, is_causal=True))

    def _hashes(self, text: Tensor, length: int) -> Tensor:
        """Of the last `length` characters at each position."""
        padded = F.pad(text, (length - 1, 0))
        found = torch.zeros_like(text)
        for offset in range(length):
            found = (found * 1_000_003 + padded[:, offset : offset + text.shape[1]] + 1) % (2**31 - 1)
        return found % self.num_hashes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--hashes", type=int, default=1 << 18)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--length", type=int, default=64)
    options = parser.parse_args()
    rank = int(os.environ.get("RANK", 0))
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    text = torch.tensor(list(Path(__file__).read_bytes()))

    model = poseidon.Parallel(CharTransformer(options.hashes, options.width))
    optimizer = poseidon.overlap(torch.optim.Adagrad(model.parameters(), 0.05), model, max_norm=1.0)

    for step in range(options.steps):
        starts = torch.randint(len(text) - options.length - 1, (16,))
        windows = torch.stack([text[start : start + options.length + 1] for start in starts])
        optimizer.zero_grad()
        logits = model(windows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        if rank == 0 and step in (options.steps // 2, options.steps - 1):
            print(f"step {step + 1}: loss {loss.item():.4f}")
    if rank == 0:
        print(model.plan)
    model.close()


if __name__ == "__main__":
    main()
