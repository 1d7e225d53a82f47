"""convert-imageset: `convert_imageset [FLAGS] ROOTFOLDER/ LISTFILE DB_NAME` makes a database of images."""

from __future__ import annotations

import argparse
import os

from poseidon.cli.command import Command, Flags, Operand, one_of, whole_number
from poseidon.cli.telling import telling, tool_flags
from poseidon.cli.terminal import has_display
from poseidon.data.database import BACKENDS
from poseidon.errors import DataError


def declare(flags: Flags) -> None:
    flags.operands(
        Operand("ROOTFOLDER", "put in front of every path of the list as it is: end it with a slash"),
        Operand("LISTFILE", "lines of `path label`"),
        Operand("DB_NAME", "the database to make; it must not exist"),
    )
    flags.switch("gray", help="read images as gray ones")
    flags.switch("shuffle", help="shuffle the lines of the list")
    flags.flag("seed", type=whole_number, metavar="N", help="for --shuffle (another order each time)")
    flags.flag("backend", type=one_of(BACKENDS), default="lmdb", metavar="KIND", help="lmdb|leveldb (lmdb)")
    flags.flag("resize-width", type=whole_number, default=0, metavar="N", help="resize images to this width")
    flags.flag("resize-height", type=whole_number, default=0, metavar="N", help="resize images to this height")
    flags.switch("check-size", help="refuse images that differ in size")
    flags.switch("encoded", help="store image files, not pixels")
    flags.flag("encode-type", default="", metavar="TYPE", help="store images as png, jpg, … (what their name ends in)")
    flags.switch("strict", help="end at the first image that cannot be read, instead of leaving it out")
    tool_flags(flags)


def run(found: argparse.Namespace) -> int:
    from poseidon.tools.convert_imageset import ConvertOptions, convert_imageset

    size = (max(0, found.resize_height), max(0, found.resize_width))
    options = ConvertOptions(
        gray=found.gray,
        shuffle=found.shuffle,
        seed=found.seed,
        backend=found.backend,
        new_size=size if all(size) else None,
        check_size=found.check_size,
        encoded=found.encoded,
        encode_type=found.encode_type,
        strict=found.strict,
    )
    if found.rootfolder and not os.path.isdir(os.path.dirname(found.rootfolder) or "."):
        raise DataError(f"{found.rootfolder}: there is no such folder; it is put in front of every path of the list")
    with telling(found) as tell:
        if any(size) and not all(size):
            tell.say("convert_imageset.cpp:92", "--resize_width and --resize_height go together: not resized", "W")
        made = convert_imageset(found.rootfolder, found.listfile, found.db_name, options, tell)
    if has_display(found):
        left_out = f", {made.num_left_out} left out" if made.num_left_out else ""
        print(f"{found.db_name}: {made.num_written} images{left_out}")
    return 0


COMMAND = Command(declare, run)
