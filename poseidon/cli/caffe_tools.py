"""Caffe's tools under their own names, and PMLS-Caffe's partition_data: the verbs of `poseidon` with Caffe's log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from poseidon.cli import TOOL_VERBS, Program, run

# What the commands are called, and the verb each stands for.
TOOLS = {
    "convert_imageset": "convert-imageset",
    "compute_image_mean": "compute-image-mean",
    "extract_features": "extract-features",
    "partition_data": "partition-data",
    "upgrade_net_proto_text": "upgrade-net",
    "upgrade_net_proto_binary": "upgrade-net",
    "upgrade_solver_proto_text": "upgrade-solver",
}


def tool_program(name: str) -> Program:
    """The program of one of Caffe's tools."""
    verb = TOOLS[name]
    return Program(name, TOOL_VERBS[verb][1], {verb: TOOL_VERBS[verb]}, only=verb)


def _main_of(name: str) -> Callable[[], int]:
    def main(words: Sequence[str] | None = None) -> int:
        return run(tool_program(name), sys.argv[1:] if words is None else words)

    main.__doc__ = f"The `{name}` command."
    return main


convert_imageset = _main_of("convert_imageset")
compute_image_mean = _main_of("compute_image_mean")
extract_features = _main_of("extract_features")
partition_data = _main_of("partition_data")
upgrade_net_proto_text = _main_of("upgrade_net_proto_text")
upgrade_net_proto_binary = _main_of("upgrade_net_proto_binary")
upgrade_solver_proto_text = _main_of("upgrade_solver_proto_text")
