"""detect: `poseidon detect WINDOWS OUTPUT` scores windows of images with a net, R-CNN's way; flags as detect.py's.

WINDOWS is a CSV with the columns filename, ymin, xmin, ymax, xmax, or an HDF5 file with datasets `filename` and
`window` (window_table.py); or, for Selective Search, a .txt with an image a line. OUTPUT gets the same with the net's
output.
"""

from __future__ import annotations

import argparse

from poseidon.cli.command import Command, Flags, Operand, files, one_of, require, whole_number
from poseidon.cli.numbers import numbers_of
from poseidon.cli.terminal import loading
from poseidon.errors import UsageError

CROP_MODES = ("list", "selective_search")
OUTPUTS = (".csv", ".h5", ".hdf5")


def declare(flags: Flags) -> None:
    flags.operands(
        Operand("WINDOWS", "windows of images, .csv or .h5, or a .txt of images for Selective Search"),
        Operand("OUTPUT", "the .csv or .h5 that gets a row of scores per window"),
    )
    flags.flag("model-def", metavar="FILE", help="the net's prototxt (deploy.prototxt)")
    flags.flag("pretrained-model", metavar="FILE", help="its weights")
    flags.flag(
        "crop-mode", type=one_of(CROP_MODES), metavar="HOW", help=f"{'|'.join(CROP_MODES)} (as WINDOWS suggests)"
    )
    flags.switch("gpu", help="as in detect.py; import caffe computes on the CPU all the same")
    flags.flag(
        "mean-file", default="", metavar="FILE", help="mean to subtract per channel: .npy or .binaryproto (none)"
    )
    flags.flag("input-scale", type=float, metavar="X", help="factor behind the mean (none)")
    flags.flag("raw-scale", type=float, default=255.0, metavar="X", help="factor before the mean (255)")
    flags.flag("channel-swap", default="2,1,0", metavar="LIST", help="order of channels, '' for RGB as loaded (2,1,0)")
    flags.flag("context-pad", type=whole_number, default=16, metavar="N", help="pixels around a window, warped (16)")


def run(found: argparse.Namespace) -> int:
    model = require(found.model_def, "model-def", "the net's prototxt, as in --model_def=deploy.prototxt")
    weights = require(found.pretrained_model, "pretrained-model", "its weights, as in --pretrained_model=x.caffemodel")
    for flag, path in (("model-def", model), ("pretrained-model", weights), ("mean-file", found.mean_file)):
        files(path, flag)
    if not found.output.lower().endswith(OUTPUTS):
        raise UsageError(f"{found.output}: expected a name that ends in {', '.join(OUTPUTS)}")
    if found.context_pad < 0:
        raise UsageError(f"--context-pad: expected at least 0, got {found.context_pad}")
    found.channel_swap = numbers_of(found.channel_swap, "channel-swap")
    found.plain = False
    with loading(found):
        from poseidon.cli.detecting import detect
    detect(found)
    return 0


COMMAND = Command(declare, run)
