"""draw-net: `poseidon draw-net NET IMAGE` draws a net's layers and blobs, with a plan also how parameters travel."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from poseidon.cli.command import Command, Flags, Operand, files, listed, one_of, whole_number
from poseidon.errors import PlanError, UsageError
from poseidon.plan import CommPlan
from poseidon.spec import NetSource, caffe_pb2, filter_net, read_net
from poseidon.tools.graphviz import RANKDIRS, TEXT_FORMATS
from poseidon.tools.net_notes import NetShapes, missing_layers

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
    flags.flag("plan", default="", metavar="FILE", help="show parameters and schemes of this plan (`plan --json`)")
    flags.switch("shapes", help="with --phase: build the net and show shapes of blobs and parameters")
    flags.switch("display-lrm", help="show learning-rate multipliers")


def run(found: argparse.Namespace) -> int:
    from poseidon.spec.files import write_atomically
    from poseidon.tools.graphviz import dot_text, render
    from poseidon.tools.net_notes import net_facts
    from poseidon.tools.picture import PictureOptions, picture_of

    image_format = os.path.splitext(found.image)[1][1:].lower()
    _check(found, image_format)
    source = read_net(found.net)
    if found.phase != "ALL":
        source = filter_net(source, caffe_pb2.Phase.Value(found.phase), found.level, listed(found.stage))
    facts = net_facts(source, plan=_plan(found.plan, source), shapes=_shapes(found) if found.shapes else None)
    options = PictureOptions(multipliers=found.display_lrm, notes=facts.notes(), blob_notes=facts.blob_notes())
    image = render(dot_text(picture_of(source, options), found.rankdir), image_format)
    print(f"Drawing net to {found.image}")
    write_atomically(image, found.image)
    return 0


def _check(found: argparse.Namespace, image_format: str) -> None:
    if not image_format:
        raise UsageError(f"{found.image}: what format? The name is to end in .svg, .png, .pdf or .{TEXT_FORMATS[0]}")
    if found.phase == "ALL" and (found.level or found.stage):
        raise UsageError("--level and --stage choose layers of a phase: give --phase=TRAIN or --phase=TEST too")
    if found.phase == "ALL" and found.shapes:
        raise UsageError(
            "--shapes builds the net, which has one phase at a time: give --phase=TRAIN or --phase=TEST too"
        )


def _plan(path: str, source: NetSource) -> CommPlan | None:
    if not path:
        return None
    files(path, "plan")
    try:
        plan = CommPlan.from_json(Path(path).read_text(encoding="utf-8", errors="replace"))
    except PlanError as problem:
        raise PlanError(f"{path}: {problem}; `poseidon plan --json` makes one") from None
    missing = missing_layers(source, plan)
    if missing:
        names = ", ".join(map(repr, missing[:5]))
        raise PlanError(f"{path} is the plan of another net: this one has no layer {names}")
    return plan


def _shapes(found: argparse.Namespace) -> NetShapes:
    """Those of the net as it would run."""
    from poseidon.net import Net

    net = Net(found.net, phase=found.phase, level=found.level, stages=listed(found.stage))
    params = {f"{entry.layer}/{entry.index}": tuple(entry.value.shape) for entry in net.learnable}
    return NetShapes(blobs={name: tuple(shape) for name, shape in net.blob_shapes.items()}, params=params)


COMMAND = Command(declare, run)
