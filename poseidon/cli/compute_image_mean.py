"""compute-image-mean: `compute_image_mean [FLAGS] INPUT_DB [OUTPUT_FILE]` computes the mean image of a database."""

from __future__ import annotations

import argparse

from poseidon.cli.command import Command, Flags, Operand, one_of
from poseidon.cli.telling import telling, tool_flags
from poseidon.cli.terminal import has_display
from poseidon.data.database import BACKENDS
from poseidon.log_line import number


def declare(flags: Flags) -> None:
    flags.operands(
        Operand("INPUT_DB", "an LMDB or LevelDB"),
        Operand("OUTPUT_FILE", "the mean_file to write; the means of channels are shown in any case", required=False),
    )
    flags.flag("backend", type=one_of(BACKENDS), default="lmdb", metavar="KIND", help="lmdb|leveldb (lmdb)")
    tool_flags(flags)


def run(found: argparse.Namespace) -> int:
    from poseidon.tools.image_mean import compute_image_mean

    with telling(found) as tell:
        mean = compute_image_mean(found.input_db, found.backend, found.output_file, tell)
    if has_display(found):
        print(f"{mean.num_records} images; mean of each channel: {', '.join(map(number, mean.channels))}")
    return 0


COMMAND = Command(declare, run)
