"""export: `poseidon export net.prototxt net.caffemodel --to onnx -o net.onnx` takes a net out of Caffe."""

from __future__ import annotations

import argparse
from pathlib import Path

from poseidon.cli.command import Command, Flags, listed, one_of, positive_number, whole_number
from poseidon.cli.conversion import assigned, parse_shapes
from poseidon.cli.terminal import loading
from poseidon.errors import UsageError

TARGETS = ("onnx", "torch", "torchscript", "safetensors", "hdf5")


def declare(flags: Flags) -> None:
    flags.add_argument("model", nargs="?", metavar="MODEL", help="the net's prototxt, deploy or train_val")
    flags.add_argument("weights", nargs="?", metavar="WEIGHTS", help="a .caffemodel or .caffemodel.h5")
    flags.flag("to", type=one_of(TARGETS), metavar="FORMAT", help="|".join(TARGETS))
    flags.add_argument("-o", "--out", metavar="OUT", help="the file or folder to write")
    flags.flag("opset", type=positive_number, metavar="N", help="of ONNX (17)")
    flags.flag("fold", action="store_true", help="put BatchNorm and Scale into the weights of the layer before them")
    flags.flag("shape", action="append", default=[], metavar="BLOB=N,C,H,W", help="of an input or a data layer's top")
    flags.flag("until", default="", metavar="BLOBS", help="end the net at these blobs")
    flags.flag("keep-losses", action="store_true", help="keep losses and accuracies of a train_val; labels are inputs")
    flags.flag("fixed-batch", action="store_true", help="keep the batch size of the prototxt")
    flags.flag("input", action="append", default=[], metavar="BLOB=FILE.npy", help="check with these values as well")
    flags.flag("tolerance", type=float, default=1e-4, metavar="D", help="largest relative difference allowed (1e-4)")
    flags.flag("no-check", action="store_true", help="write only")
    flags.flag("level", type=whole_number, default=0, metavar="N", help="the net's level, for include and exclude")
    flags.flag("stage", default="", metavar="NAMES", help="the net's stages, separated by commas")
    flags.flag("plain", action="store_true", help="no display, also on a terminal")


def run(found: argparse.Namespace) -> int:
    if not found.model:
        raise UsageError("which net? `poseidon export net.prototxt net.caffemodel --to onnx -o net.onnx`")
    if not found.to or not found.out:
        raise UsageError(f"say --to what and -o where: formats are {', '.join(TARGETS)}")
    for path in (found.model, found.weights):
        if path and not Path(path).exists():
            raise UsageError(f"there is no file {path!r}; a relative path starts where the command runs")
    shapes = parse_shapes(found.shape)
    given = assigned(found.input, "input", "data=batch.npy")
    with loading(found):
        from poseidon.cli.conversion import show_export
        from poseidon.convert.deploy import Deployment
        from poseidon.convert.export import ExportOptions, export_net, net_to_export
        from poseidon.convert.inputs import read_input
    wanted = Deployment(found.level, tuple(listed(found.stage)), shapes, tuple(listed(found.until)), found.keep_losses)
    options = ExportOptions(
        found.to,
        found.opset,
        found.fold,
        found.fixed_batch,
        {name: read_input(name, path) for name, path in given.items()},
        not found.no_check,
    )
    net, notes = net_to_export(found.model, found.weights, wanted)
    return show_export(export_net(net, Path(found.out), options), notes, found.tolerance)


COMMAND = Command(declare, run)
