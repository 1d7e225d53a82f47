"""device_query: `caffe device_query --gpu=all|0,1` shows what is known about the GPUs."""

from __future__ import annotations

import argparse

from poseidon.cli.command import Command, Flags


def declare(flags: Flags) -> None:
    flags.flag("gpu", default="all", metavar="IDS", help="`all` (default), or numbers separated by commas")


def run(found: argparse.Namespace) -> int:
    import torch  # only now: it takes seconds, and a wrong flag should be told at once

    from poseidon.cli.devices import gpu_ids
    from poseidon.cli.log import CommandLog

    ids = gpu_ids(found.gpu)
    log = CommandLog()
    log.say("caffe.cpp:138", f"Querying GPUs {found.gpu}")
    for device in ids:
        facts = torch.cuda.get_device_properties(device)
        for label, value in (
            ("Device id", device),
            ("Major revision number", facts.major),
            ("Minor revision number", facts.minor),
            ("Name", facts.name),
            ("Total global memory", facts.total_memory),
            ("Number of multiprocessors", facts.multi_processor_count),
        ):
            log.say("common.cpp:178", f"{label + ':':31}{value}")
    return 0


COMMAND = Command(declare, run)
