"""draw-net: `poseidon draw-net NET.prototxt IMAGE` draws a net with Graphviz; the image's name says the format."""

from __future__ import annotations

import argparse
import os

from poseidon.cli.command import Command, Flags, Operand, listed, one_of, whole_number
from poseidon.errors import UsageError
from poseidon.tools.graphviz import RANKDIRS, TEXT_FORMATS

PHASES = ("ALL", "TRAIN", "TEST")


def declare(flags: Flags) -> None:
    flags.operands(
        Operand("NET", "a net's prototxt"),
        Operand("IMAGE", "NAME.svg, .png, .pdf, … by Graphviz; .dot is its text, which needs no Graphviz"),
    )
    flags.flag("rankdir", type=one_of(RANKDIRS), default="LR", metavar="WAY", help=f"{'|'.join(RANKDIRS)} (LR)")
    flags.flag("phase", type=one_of(PHASES), default="ALL", metavar="PHASE", help=f"{'|'.join(PHASES)} (ALL)")
    flags.flag("level", type=whole_number, default=0, metavar="N", help="with --phase: the net's level")
    flags.flag("stage", default="", metavar="NAMES", help="with --phase: the net's stages, separated by commas")
    flags.switch("display-lrm", help="show learning-rate multipliers")


def run(found: argparse.Namespace) -> int:
    from poseidon.spec import caffe_pb2, filter_net, read_net
    from poseidon.spec.files import write_atomically
    from poseidon.tools.graphviz import dot_text, render
    from poseidon.tools.picture import PictureOptions, picture_of

    image_format = os.path.splitext(found.image)[1][1:].lower()
    if not image_format:
        raise UsageError(f"{found.image}: what format? The name is to end in .svg, .png, .pdf or .{TEXT_FORMATS[0]}")
    if found.phase == "ALL" and (found.level or found.stage):
        raise UsageError("--level and --stage choose layers of a phase: give --phase=TRAIN or --phase=TEST too")
    source = read_net(found.net)
    if found.phase != "ALL":
        source = filter_net(source, caffe_pb2.Phase.Value(found.phase), found.level, listed(found.stage))
    picture = picture_of(source, PictureOptions(multipliers=found.display_lrm))
    image = render(dot_text(picture, found.rankdir), image_format)
    print(f"Drawing net to {found.image}")
    write_atomically(image, found.image)
    return 0


COMMAND = Command(declare, run)
