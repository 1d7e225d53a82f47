"""What the lab trains: nets, batches, and what a GPU takes for them.

Compute of a GPU is replaced by its time: a layer's share of the iteration goes by its multiplications. Updates and
rebuilt factors are paced at the rates below, on one device that does one thing at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.generate import bench_text

GPU_FLOPS = 6e12  # dense products in fp32, a card of 2016
GPU_UPDATE_ELEMS = 300e9 / 20  # momentum SGD moves 20 bytes per parameter, at 300 GB/s


@dataclass(frozen=True, slots=True)
class Subject:
    """A net, the batch of one worker, and the seconds of compute of one iteration."""

    net: str
    batch: int
    compute_s: float

    def text(self) -> str:
        return bench_text(self.net, self.batch)


SUBJECTS = {
    "alexnet": Subject("alexnet", 32, 0.5),
    "vgg19": Subject("vgg19", 32, 1.0),
    "resnet50": Subject("resnet50", 32, 0.9),
    "googlenet": Subject("googlenet", 32, 0.35),
}
