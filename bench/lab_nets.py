"""What the lab trains: nets, batches, and what a GPU takes for them.

Compute of a GPU is replaced by its time: a layer's share of the iteration goes by its multiplications. Updates and
rebuilt factors are paced at the rates below, on one device that does one thing at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.generate import bench_text, net_text
from models.prototxt import XAVIER, ZERO, Layers, Style, conv, dropout, inner_product, layer, pool, relu, softmax_loss

GPU_FLOPS = 6e12  # dense products in fp32, a card of 2016
GPU_UPDATE_ELEMS = 300e9 / 20  # momentum SGD moves 20 bytes per parameter, at 300 GB/s


@dataclass(frozen=True, slots=True)
class Subject:
    """A net, the batch of one worker, and the seconds of compute of one iteration."""

    net: str
    batch: int
    compute_s: float

    def text(self) -> str:
        if self.net == "vgg19":
            return net_text("VGG-19", _inputs(self.batch) + vgg19())
        return bench_text(self.net, self.batch)


SUBJECTS = {
    "alexnet": Subject("alexnet", 32, 0.5),
    "vgg19": Subject("vgg19", 32, 1.0),
    "resnet50": Subject("resnet50", 32, 0.9),
    "googlenet": Subject("googlenet", 32, 0.35),
}


def vgg19() -> Layers:
    """Simonyan and Zisserman 2014: sixteen 3×3 convolutions in five blocks, three fully-connected layers."""
    style = Style(XAVIER, ZERO, decays=False)
    layers: Layers = []
    bottom = "data"
    for block, (width, depth) in enumerate([(64, 2), (128, 2), (256, 4), (512, 4), (512, 4)], start=1):
        for number in range(1, depth + 1):
            name = f"conv{block}_{number}"
            layers += [conv(name, bottom, width, style, kernel_size=3, pad=1), relu(f"relu{block}_{number}", name)]
            bottom = name
        layers.append(pool("MAX", f"pool{block}", bottom, kernel_size=2, stride=2))
        bottom = f"pool{block}"
    for name in ("fc6", "fc7"):
        layers += [
            inner_product(name, bottom, 4096, style),
            relu(f"relu_{name}", name),
            dropout(f"drop_{name}", name, 0.5),
        ]
        bottom = name
    return [*layers, inner_product("fc8", bottom, 1000, style), softmax_loss("loss", "fc8", "loss")]


def _inputs(batch: int) -> Layers:
    shapes = {"data": [batch, 3, 224, 224], "label": [batch]}
    return [layer("Input", name, [], [name], input_param={"shape": {"dim": dims}}) for name, dims in shapes.items()]
