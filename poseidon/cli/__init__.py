"""The `poseidon` and `caffe` commands.

Each verb is a module of this package with a `COMMAND`, which declares flags and looks at their values; what needs
PyTorch is imported only after that, so that help and mistakes answer at once. Errors a user can mend are one line and
exit code 1; `--debug` shows the traceback.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from poseidon import __version__
from poseidon.cli.command import Command, Flags
from poseidon.cli.plugins import load_asked
from poseidon.cli.pmls import translate
from poseidon.errors import PoseidonError, UsageError
from poseidon.spec import nearest


@dataclass(frozen=True, slots=True)
class Program:
    """A program of several verbs: `modules` maps each verb to (module, one-line summary). One that has `only` a single
    verb takes its flags straight away, as Caffe's tools do."""

    name: str
    about: str
    modules: dict[str, tuple[str, str]]
    only: str = ""


CAFFE_VERBS = {
    "train": ("train", "train or fine-tune a net, or go on from a snapshot"),
    "test": ("test", "score a net"),
    "time": ("time", "time a net layer by layer"),
    "device_query": ("device_query", "show what is known about the GPUs"),
}
TOOL_VERBS = {
    "convert-imageset": ("convert_imageset", "make an LMDB or LevelDB from images and a list of their labels"),
    "compute-image-mean": ("compute_image_mean", "compute the mean image of an LMDB or LevelDB"),
    "extract-features": ("extract_features", "write blobs of a net, record by record, to an LMDB or LevelDB"),
    "partition-data": ("partition_data", "deal an LMDB or LevelDB into one for each worker"),
    "upgrade-net": ("upgrade_net", "write a net of an old format, text or weights, in the current one"),
    "upgrade-solver": ("upgrade_solver", "write a solver of an old format in the current one"),
    "classify": ("classify", "show what a net takes images for"),
    "detect": ("detect", "score windows of images, listed in a CSV or HDF5 file, with a net"),
    "draw-net": ("draw_net", "draw a net (SVG, PNG, PDF) with Graphviz"),
    "parse-log": ("parse_log", "write the figures of a training log as CSV"),
    "plot-log": ("plot_log", "draw charts of training logs (PNG)"),
}
POSEIDON = Program(
    "poseidon",
    "Train Caffe and PyTorch networks on the machines people really have.",
    {
        **{verb.replace("_", "-"): entry for verb, entry in CAFFE_VERBS.items()},
        **TOOL_VERBS,
        "data": ("data", "make a data set's LMDBs: mnist, fashion-mnist, cifar10, digits"),
        "plan": ("plan", "show how training on a cluster would communicate, and how long it would take"),
        "simulate": ("simulate", "play training on a cluster that need not exist, and tell how long it would take"),
        "report": ("report", "make one HTML page of what a run has recorded"),
        "trace": ("trace", "make one timeline of what all workers recorded, for Perfetto or chrome://tracing"),
        "bench": ("bench", "run the benchmarks of the source tree, beside the last run"),
        "doctor": ("doctor", "look for what would keep a job from running on these hosts, and say what to do"),
        "status": ("status", "show what running jobs do"),
        "kill": ("kill", "end what jobs left running"),
        "inspect": ("inspect", "tell what is in a file: net, weights, state, mean, database, HDF5, safetensors, ONNX"),
        "export": ("export", "take a net out of Caffe: ONNX, PyTorch, TorchScript, safetensors, HDF5"),
        "import": ("import_", "bring a PyTorch or ONNX model into Caffe"),
    },
)
CAFFE = Program("caffe", "Caffe's command, run by Poseidon.", CAFFE_VERBS)
PMLS = Program("caffe_main", "PMLS-Caffe's command, run by Poseidon.", CAFFE_VERBS)

# Flags that take no value, so that the word after them may be the verb.
_SWITCHES = frozenset(
    (
        "debug",
        "quick",
        "norecord",
        "plain",
        "help",
        "h",
        "json",
        "measure",
        "sync-bn",
        "svb",
        "nosvb",
        "fold",
        "keep-losses",
        "fixed-batch",
        "no-check",
        "diff",
        "brief",
    )
)


def main(words: Sequence[str] | None = None) -> int:
    """The `poseidon` command."""
    return run(POSEIDON, sys.argv[1:] if words is None else words)


def caffe_main(words: Sequence[str] | None = None) -> int:
    """The `caffe` command: the same verbs, always with Caffe's log lines."""
    return run(CAFFE, sys.argv[1:] if words is None else words)


def pmls_main(words: Sequence[str] | None = None) -> int:
    """The `caffe_main` command: PMLS-Caffe's name of `caffe`."""
    return run(PMLS, sys.argv[1:] if words is None else words)


def run(program: Program, words: Sequence[str]) -> int:
    """Runs one command line; returns its exit code."""
    debug = any(word in ("--debug", "-debug") for word in words)
    try:
        return _dispatch(program, list(words))
    except PoseidonError as problem:
        if debug:
            raise
        print(f"{program.name}: error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{program.name}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away, as `| head` does; nobody is left to be told
        _silence()
        return 141


def _dispatch(program: Program, words: list[str]) -> int:
    if not program.only and (not words or words[0] in ("help", "--help", "-help", "-h")):
        print(_overview(program), flush=True)
        return 0
    if words and words[0] in ("version", "--version", "-version")[bool(program.only) :]:
        print(f"{program.name} of Poseidon {__version__}", flush=True)
        return 0
    try:
        command, found = parse(program, words)
    except SystemExit:  # how argparse ends once it has printed the help
        sys.stdout.flush()
        return 0
    load_asked(found, os.environ)
    return command.run(found) or 0


def parse(program: Program, words: Sequence[str]) -> tuple[Command, argparse.Namespace]:
    """The verb of a command line and the values of its flags."""
    verb, rest = (program.only, list(words)) if program.only else _verb_first(program, words)
    if verb == "train":
        rest = translate(rest, lambda line: print(f"{program.name}: note: {line}", file=sys.stderr))
    name, summary = program.modules[verb]
    command: Command = importlib.import_module(f"poseidon.cli.{name}").COMMAND
    flags = Flags(program.name if program.only else f"{program.name} {verb}", summary)
    command.declare(flags)
    found = flags.parse(rest)
    found.program = program.name
    found.words = (verb, *rest)
    return command, found


def _verb_first(program: Program, words: Sequence[str]) -> tuple[str, list[str]]:
    """The verb and its flags; like gflags, flags may also stand before the verb."""
    spelled = {verb.replace("-", "_"): verb for verb in program.modules}
    is_value = False
    for position, word in enumerate(words):
        if is_value:
            is_value = False
        elif word.startswith("-"):
            is_value = "=" not in word and word.lstrip("-").replace("_", "-") not in _SWITCHES
        elif word.replace("-", "_") in spelled:
            return spelled[word.replace("-", "_")], [*words[:position], *words[position + 1 :]]
        else:
            hint = nearest(word, program.modules)
            raise UsageError(f"there is no command {word!r}{hint}; commands: {', '.join(program.modules)}")
    verbs = ", ".join(program.modules)
    raise UsageError(f"which command? Expected one of {verbs}, as in `{program.name} train --solver=FILE`")


def _overview(program: Program) -> str:
    width = max(map(len, program.modules))
    verbs = "\n".join(f"  {verb:{width}}  {summary}" for verb, (_, summary) in program.modules.items())
    return (
        f"usage: {program.name} COMMAND [flags]\n\n{program.about}\n\ncommands:\n{verbs}\n\n"
        f"`{program.name} COMMAND --help` lists the flags of a command."
    )


def _silence() -> None:
    """What is still buffered goes nowhere: Python would try to write it once more on its way out, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
