"""Random draws that do not depend on who draws them.

Every draw is keyed by (seed, purpose, clock, global sample index), never taken from a shared stream. So P workers
draw for their samples exactly what one worker with the P-fold batch would draw for the same samples, a resumed run
repeats an uninterrupted one, and adding a layer to a net does not change what the others draw.

    key = hash64(seed, name, clock, sample)        one torch generator is re-seeded per key

Sample i of a local batch has the global index `first + i * stride`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable

import torch
from torch import Tensor


def key_of(*parts: int | str) -> int:
    """63-bit key of the parts, the same on every machine and Python."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


class Draws:
    """The source of all randomness of one net.

    `seed` names the whole sequence, `clock` counts forward passes in TRAIN phase; `first` and `stride` say which
    global samples the local batch holds.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = secrets.randbits(62) if seed is None else int(seed)
        self.clock = 0
        self.first = 0
        self.stride = 1

    def generator(self, *key: int | str, device: torch.device | str = "cpu") -> torch.Generator:
        """A fresh generator for a draw that belongs to no sample, such as a filler's."""
        generator = torch.Generator(device=device)
        generator.manual_seed(key_of(self.seed, *key))
        return generator

    def per_sample(self, name: str, out: Tensor, draw: Callable[[Tensor, torch.Generator], object]) -> Tensor:
        """Fills `out` along its first axis: `draw(row, generator)` fills one sample's row in place."""
        generator = torch.Generator(device=out.device)
        rows = [out] if out.dim() == 0 else out
        for i, row in enumerate(rows):
            generator.manual_seed(key_of(self.seed, name, self.clock, self.first + i * self.stride))
            draw(row, generator)
        return out
