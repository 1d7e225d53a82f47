"""plan: `poseidon plan --solver=S --workers 8 --bandwidth 1gbit` shows how training would communicate; it runs nothing.

The compute times that the plan has to fit around are, in this order: what --compute-ms says an iteration takes, spread
over layers by their multiplications; what --measure finds on this machine; what --gpu-flops makes of the
multiplications.

With --sweep the command shows instead what a faster switch, one more host or a larger batch would give.
"""

from __future__ import annotations

import argparse
import math
import re

from poseidon.cli.command import Command, Flags, listed, net_flags, one_of, positive_number, require
from poseidon.cli.terminal import loading
from poseidon.errors import UsageError
from poseidon.plan import (
    PATTERNS,
    PAYLOAD_SHARE,
    WIRES,
    Cluster,
    PlanRequest,
    Scheme,
    parse_bandwidth,
    parse_nodes,
    parse_overrides,
    parse_scheme,
    parse_seconds,
    parse_sweep,
)
from poseidon.spec import read_solver

AUTO = "auto"
SCHEMES = (AUTO, *(scheme.value for scheme in Scheme if scheme not in (Scheme.LOCAL, Scheme.POWER_SGD)))
WIRE_HELP = f"dense gradients travel as {'|'.join(WIRES)} ({WIRES[0]}); factors and rows keep full width"


def declare(flags: Flags) -> None:
    flags.flag("solver", metavar="FILE", help="the solver's prototxt")
    flags.flag("workers", type=positive_number, metavar="P", help="how many workers, each on a node of its own")
    flags.flag("nodes", metavar="NxG", help="workers on each node: 2x4 for two nodes of four, or 4,4,2")
    flags.flag("bandwidth", metavar="RATE", help="of a node's link: 1gbit, 200mbit, …")
    flags.flag("latency", default="0.1ms", metavar="TIME", help="of a message (0.1ms)")
    flags.flag("batch", type=positive_number, metavar="N", help="each worker's batch instead of the net's own")
    flags.flag("image", type=image_size, metavar="CxHxW", help="what the net sees, where data is not here to say it")
    flags.flag("gpu-flops", type=above_zero, default=6e12, metavar="RATE", help="a device's FLOP/s (6e12)")
    flags.flag("compute-ms", type=above_zero, metavar="T", help="what an iteration computes, in milliseconds")
    flags.flag("measure", action="store_true", help="time the layers on this machine")
    flags.flag(
        "pattern", type=one_of(PATTERNS), default=PATTERNS[0], metavar="NAME", help=f"{'|'.join(PATTERNS)} (collective)"
    )
    flags.flag("wire", type=one_of(WIRES), default=WIRES[0], metavar="TYPE", help=WIRE_HELP)
    flags.flag("scheme", type=scheme_name, default=AUTO, metavar="NAME", help=f"{'|'.join(SCHEMES)} (auto)")
    flags.flag("units", default="", metavar="LIST", help="schemes by parameter or layer: fc6=ring,fc7*=factors")
    flags.flag(
        "sweep",
        default="",
        metavar="AXES",
        help="what others would give: some of bandwidth,workers,batch; with values bandwidth=1gbit:10gbit,workers=8:9",
    )
    flags.flag("plot", default="", metavar="FILE", help="the sweep as a picture (.svg, .png)")
    flags.flag("json", action="store_true", help="the plan, or the sweep, as JSON")
    net_flags(flags)


def scheme_name(text: str) -> str:
    """A scheme, with `-` or `_`."""
    return one_of(SCHEMES)(text.replace("_", "-"))


def above_zero(text: str) -> float:
    """A number that can be a rate or a time."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return number


def image_size(text: str) -> tuple[int, int, int]:
    """`3x224x224`: channels, height and width."""
    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})x([1-9]\d{0,4})", text, re.ASCII)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected channels, height and width, as in 3x224x224, got {text!r}")
    channels, height, width = map(int, found.groups())
    return channels, height, width


def run(found: argparse.Namespace) -> int:
    path = require(found.solver, "solver", "the solver's prototxt, as in --solver=solver.prototxt")
    cluster = cluster_of(found)
    request = PlanRequest(
        wire=found.wire,
        scheme=None if found.scheme == AUTO else parse_scheme(found.scheme),
        overrides=parse_overrides(found.units) if found.units else (),
        pattern=found.pattern,
    )
    if found.measure and found.compute_ms is not None:
        raise UsageError("give --measure to time the layers here or --compute-ms to say what they take, not both")
    if found.plot and not found.sweep:
        raise UsageError("--plot draws a sweep: say over what, as in --sweep=bandwidth,workers,batch")
    axes = parse_sweep(found.sweep) if found.sweep else ()
    param = read_solver(path)
    param.train_state.level = found.level
    param.train_state.stage.extend(listed(found.stage))
    with loading(found):
        from poseidon.cli.planning import show_plan
        from poseidon.cli.sweeping import Asked, show_sweep
    if axes:
        show_sweep(param, Asked(axes, cluster, request), found)
    else:
        show_plan(param, cluster, request, found)
    return 0


def cluster_of(found: argparse.Namespace) -> Cluster:
    """The cluster the flags describe."""
    bandwidth = require(found.bandwidth, "bandwidth", "the rate of a node's link, as in --bandwidth=1gbit")
    if found.nodes:
        node_workers = parse_nodes(found.nodes)
        if found.workers not in (None, sum(node_workers)):
            raise UsageError(
                f"--nodes={found.nodes} has {sum(node_workers)} workers, --workers says {found.workers}: "
                "leave one of them out"
            )
    elif found.workers:
        node_workers = (1,) * found.workers
    else:
        raise UsageError("--workers is missing: give the number of workers, as in --workers=8, or --nodes=2x4")
    return Cluster(
        node_workers=node_workers,
        bandwidth_bps=parse_bandwidth(bandwidth) * PAYLOAD_SHARE,
        latency_s=parse_seconds(found.latency),
        flops=found.gpu_flops,
    )


COMMAND = Command(declare, run)
