"""classify: `poseidon classify INPUT [OUTPUT.npy]` shows what a net takes images for; flags of Caffe's classify.py.

INPUT is an image, a folder of them, or a .npy of N × height × width × channels. OUTPUT gets the net's output, a row per
image. Images are resized to --images-dim; ten crops of each are averaged, or the central one is taken. With --serve
images come from a page in the browser instead (serving.py).
"""

from __future__ import annotations

import argparse
import os

from poseidon.cli.command import Command, Flags, Operand, files, positive_number, require, whole_number
from poseidon.cli.numbers import numbers_of
from poseidon.cli.terminal import loading
from poseidon.errors import UsageError

MAX_PIXELS = 64 << 20


def declare(flags: Flags) -> None:
    flags.operands(
        Operand("INPUT", "an image, a folder of images, or a .npy of N x height x width x channels in [0, 1]", False),
        Operand("OUTPUT", "the .npy file that gets the net's output, one row per image", required=False),
    )
    flags.flag("model-def", metavar="FILE", help="the net's prototxt (deploy.prototxt)")
    flags.flag("pretrained-model", metavar="FILE", help="its weights")
    flags.switch("gpu", help="as in classify.py; import caffe computes on the CPU all the same")
    flags.switch("center-only", help="take the central crop instead of the mean over ten")
    flags.flag("images-dim", default="256,256", metavar="H,W", help="the size images are resized to (256,256)")
    flags.flag("mean-file", default="", metavar="FILE", help="mean to subtract: .npy or .binaryproto (none)")
    flags.flag("input-scale", type=float, metavar="X", help="factor behind the mean (none)")
    flags.flag("raw-scale", type=float, default=255.0, metavar="X", help="factor before the mean (255)")
    flags.flag("channel-swap", default="2,1,0", metavar="LIST", help="order of channels, '' for RGB as loaded (2,1,0)")
    flags.flag("ext", default="jpg", metavar="ENDING", help="of the images of a folder (jpg)")
    flags.flag("labels-file", default="", metavar="FILE", help="names of the classes, one a line")
    flags.flag("top", type=positive_number, default=5, metavar="K", help="how many classes to show (5)")
    flags.switch("serve", help="instead of INPUT: a page on this machine, on which images are dropped")
    flags.flag("port", type=whole_number, default=0, metavar="N", help="of that page (0: any that is free)")


def run(found: argparse.Namespace) -> int:
    model = require(found.model_def, "model-def", "the net's prototxt, as in --model_def=deploy.prototxt")
    weights = require(found.pretrained_model, "pretrained-model", "its weights, as in --pretrained_model=x.caffemodel")
    for flag, path in (("model-def", model), ("pretrained-model", weights)):
        files(path, flag)
    for flag in ("mean-file", "labels-file"):
        files(getattr(found, flag.replace("-", "_")), flag)
    found.images_dim = numbers_of(found.images_dim, "images-dim")
    if len(found.images_dim) != 2 or min(found.images_dim) < 1:
        raise UsageError("--images-dim is height,width, as in --images_dim=256,256")
    found.channel_swap = numbers_of(found.channel_swap, "channel-swap")
    found.plain = False
    if found.serve:
        return _serve(found)
    if not found.input:
        raise UsageError("INPUT is missing: an image, a folder of images, or a .npy (or --serve for a page)")
    found.input = os.path.expanduser(found.input)
    if not os.path.exists(found.input):
        raise UsageError(f"there is no file {found.input!r}; expected an image, a folder of images, or a .npy")
    with loading(found):
        from poseidon.cli.classifying import classify
    classify(found)
    return 0


def _serve(found: argparse.Namespace) -> int:
    if found.input:
        raise UsageError(f"--serve takes images from its page, not {found.input!r}; leave one of the two out")
    if not 0 <= found.port < 1 << 16:
        raise UsageError(f"--port: expected 0 to 65535, got {found.port}")
    # OpenCV reads this when it is loaded: a few bytes can promise an image that fills the machine.
    os.environ["OPENCV_IO_MAX_IMAGE_PIXELS"] = str(MAX_PIXELS)
    with loading(found):
        from poseidon.cli.serving import serve
    serve(found)
    return 0


COMMAND = Command(declare, run)
