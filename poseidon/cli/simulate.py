"""simulate: `poseidon simulate --solver=S --workers 64 --bandwidth 10gbit` plays training on a cluster that need not
exist, message by message, and tells how long an iteration takes there.

The plan is the one that `poseidon plan` shows, or one that is given. Layers take what a profile says, what --compute-ms
says an iteration takes, or what --gpu-flops makes of their multiplications.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from poseidon.cli.command import Command, Flags, listed, one_of, positive_number, whole_number
from poseidon.cli.plan import AUTO, SCHEMES, WIRE_HELP, above_zero, image_size, scheme_name
from poseidon.cli.terminal import loading
from poseidon.errors import UsageError
from poseidon.plan import WIRES, CommPlan, NetProfile, PlanRequest, parse_overrides, parse_scheme
from poseidon.simulate.description import machines_of, read_description
from poseidon.simulate.machines import Machines
from poseidon.spec import caffe_pb2, read_solver

# Flags that say the same as the words of a description.
_WORDS = ("workers", "nodes", "bandwidth", "latency", "overhead", "switch", "jitter", "straggler", "seed")


def declare(flags: Flags) -> None:
    flags.flag("solver", metavar="FILE", help="the solver's prototxt")
    flags.flag("workers", metavar="P", help="how many workers, each on a node of its own")
    flags.flag("nodes", metavar="NxG", help="workers on each node: 2x4 for two nodes of four, or 4,4,2")
    flags.flag("bandwidth", metavar="RATE", help="of a node's link: 1gbit, 200mbit, …")
    flags.flag("latency", metavar="TIME", help="of a message (0.1ms)")
    flags.flag("overhead", metavar="TIME", help="of it, what hosts work for a message (0us)")
    flags.flag("switch", metavar="N:S", help="N nodes on a switch, oversubscribed S times")
    flags.flag("jitter", metavar="SHARE", help="of compute from iteration to iteration, like 0.05 (0)")
    flags.flag("straggler", metavar="LIST", help="workers that take so many times as long: 3:2.0,5:1.5")
    flags.flag("seed", metavar="N", help="of the jitter (0)")
    flags.flag("cluster", metavar="FILE", help="the same words in a JSON file; flags count more")
    flags.flag("iterations", type=positive_number, default=4, metavar="N", help="how many, the first included (4)")
    flags.flag("profile", metavar="FILE", help="layers and their seconds as JSON, instead of a solver")
    flags.flag("save-profile", metavar="FILE", help="write the profile that is played")
    flags.flag("plan", metavar="FILE", help="a plan as `poseidon plan --json` prints it, instead of a new one")
    flags.flag("batch", type=positive_number, metavar="N", help="each worker's batch instead of the net's own")
    flags.flag("image", type=image_size, metavar="CxHxW", help="what the net sees, where data is not here to say it")
    flags.flag("gpu-flops", type=above_zero, default=6e12, metavar="RATE", help="a device's FLOP/s (6e12)")
    flags.flag("compute-ms", type=above_zero, metavar="T", help="what an iteration computes, in milliseconds")
    flags.flag("wire", type=one_of(WIRES), default=WIRES[0], metavar="TYPE", help=WIRE_HELP)
    flags.flag("scheme", type=scheme_name, default=AUTO, metavar="NAME", help=f"{'|'.join(SCHEMES)} (auto)")
    flags.flag("units", default="", metavar="LIST", help="schemes by parameter or layer: fc6=ring,fc7*=factors")
    flags.flag("record", metavar="FOLDER", help="write a run folder, for `poseidon report` and `poseidon trace`")
    flags.flag("json", action="store_true", help="the result as JSON")
    flags.flag("level", type=whole_number, default=0, metavar="N", help="the net's level, for include and exclude")
    flags.flag("stage", default="", metavar="NAMES", help="the net's stages, separated by commas")
    flags.flag("plain", action="store_true", help="no sign of loading on a terminal")


def run(found: argparse.Namespace) -> int:
    machines = machines_asked(found)
    request = PlanRequest(
        wire=found.wire,
        scheme=None if found.scheme == AUTO else parse_scheme(found.scheme),
        overrides=parse_overrides(found.units) if found.units else (),
    )
    if bool(found.solver) == bool(found.profile):
        raise UsageError("give the net to simulate once: --solver=solver.prototxt or --profile=profile.json")
    plan = CommPlan.from_json(_text(found.plan, "plan")) if found.plan else None
    profile = NetProfile.from_json(_text(found.profile, "profile")) if found.profile else None
    param = read_solver(found.solver) if found.solver else caffe_pb2.SolverParameter()
    param.train_state.level = found.level
    param.train_state.stage.extend(listed(found.stage))
    with loading(found):
        from poseidon.cli.simulating import Subject, profile_of, show_simulation
    subject = profile_of(param, found) if profile is None else Subject(profile)
    show_simulation(subject, machines, plan or request, found)
    return 0


def machines_asked(found: argparse.Namespace) -> Machines:
    """The machines that the flags, and a file, describe."""
    said = read_description(found.cluster) if found.cluster else {}
    told = {word: str(value) for word in _WORDS if (value := getattr(found, word)) is not None}
    if told.keys() & {"workers", "nodes"}:
        said = {word: value for word, value in said.items() if word not in ("workers", "nodes")}
    return machines_of({"flops": str(found.gpu_flops)} | said | told)


def _text(path: str, what: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"--{what}={path}: cannot be read: {problem}") from None


COMMAND = Command(declare, run)
