"""import: `poseidon import package.module:factory weights.safetensors --to prototxt` brings a net into Caffe."""

from __future__ import annotations

import argparse
from pathlib import Path

from poseidon.cli.command import Command, Flags, one_of
from poseidon.cli.conversion import parse_shapes
from poseidon.cli.terminal import loading
from poseidon.errors import UsageError

_PICKLED = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt", ".tar")


def declare(flags: Flags) -> None:
    flags.add_argument("model", nargs="?", metavar="MODEL", help="MODULE:FACTORY, FILE.py:FACTORY or MODEL.onnx")
    flags.add_argument("weights", nargs="?", metavar="WEIGHTS", help="a .safetensors file, for PyTorch models")
    flags.flag("to", type=one_of(("prototxt",)), default="prototxt", metavar="FORMAT", help="prototxt")
    flags.add_argument("-o", "--out", metavar="OUT", help="the prototxt to write; the caffemodel goes beside it")
    flags.flag("shape", action="append", default=[], metavar="NAME=N,C,H,W", help="of an input")
    flags.flag("tolerance", type=float, default=1e-4, metavar="D", help="largest relative difference allowed (1e-4)")
    flags.flag("plain", action="store_true", help="no display, also on a terminal")


def run(found: argparse.Namespace) -> int:
    if not found.model or not found.out:
        raise UsageError(
            "say which model and where to: `poseidon import model.onnx -o net.prototxt` or "
            "`poseidon import package.module:factory weights.safetensors --shape x=1,3,224,224 -o net.prototxt`"
        )
    for path in (found.model, found.weights or ""):
        if Path(path).suffix.lower() in _PICKLED:
            raise UsageError(
                f"{path}: a pickled archive can run any code when it is opened: refused. Save its weights as "
                "safetensors (safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')) and name the "
                "model as MODULE:FACTORY"
            )
    shapes = parse_shapes(found.shape)
    with loading(found):
        from poseidon.cli.conversion import show_import
        from poseidon.convert.to_caffe.convert import import_model
    report = import_model(found.model, found.weights, Path(found.out), shapes)
    return show_import(report, found.tolerance)


COMMAND = Command(declare, run)
