"""What `poseidon plan` does once its flags are read: builds the net, profiles it, plans, prints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf import text_format
from rich.console import Console
from rich.table import Table

from poseidon.cli.devices import solver_device
from poseidon.cli.terminal import busy
from poseidon.net import Net
from poseidon.plan import Cluster, CommPlan, NetProfile, PlanRequest, make_plan, plan_table
from poseidon.plan.table import HEADINGS, is_right_aligned
from poseidon.run.batch import set_batch
from poseidon.run.feeds import replace_missing_data
from poseidon.run.layer_times import LayerTime, estimated_times, measured_times, scaled_times
from poseidon.run.profile import profile_net
from poseidon.solver.nets import NetOptions, train_net
from poseidon.spec import caffe_pb2
from poseidon.spec.filter import filter_by_state


def show_plan(
    param: caffe_pb2.SolverParameter, cluster: Cluster, request: PlanRequest, found: argparse.Namespace
) -> None:
    """Prints the plan for a solver's net: a table, or JSON."""
    trained = profile_solver(param, found, measure=found.measure)
    plan = make_plan(trained.profile, cluster, request)
    above = [f"compute   {compute_basis(found, measure=found.measure)}", *trained.notes]
    if found.json:
        print(plan.to_json())
    elif sys.stdout.isatty() and not found.plain:
        _print_rich(plan, above)
    else:
        print("\n".join(above))
        print(plan.table())


@dataclass(frozen=True, slots=True)
class Trained:
    """The net that a solver trains: its profile and its text, and the layers whose data is not here."""

    profile: NetProfile
    text: str
    missing: tuple[str, ...]

    @property
    def notes(self) -> list[str]:
        """What there is to say about data."""
        names = ", ".join(dict.fromkeys(self.missing))
        return [f"data      not here, its shapes as {names} has them"] if self.missing else []


def profile_solver(param: caffe_pb2.SolverParameter, found: argparse.Namespace, *, measure: bool) -> Trained:
    """The net that a solver trains. Unless its layers are to be measured nothing is computed: parameters are shapes
    only, and data need not be here."""
    choice = train_net(param)
    source = choice.read()
    source = filter_by_state(source, choice.state(source))
    if found.batch is not None:
        set_batch(source, found.batch)
    missing = [] if measure else replace_missing_data(source, found.image)
    device = solver_device(param, found.gpu) if measure else "meta"
    net = choice.build(source, max(param.random_seed, 0), NetOptions(device=device))
    if measure:
        with busy("measuring layers"):
            times = measured_times(net)
    else:
        times = _estimated(net, found, param.iter_size)
    profile = profile_net(net, times, iter_size=param.iter_size, needs_all_gradients=param.clip_gradients >= 0)
    return Trained(profile, text_format.MessageToString(source.net), tuple(missing))


def _estimated(net: Net, found: argparse.Namespace, iter_size: int) -> list[LayerTime]:
    times = estimated_times(net, found.gpu_flops)
    if found.compute_ms is None:
        return times
    return scaled_times(times, found.compute_ms / 1e3 / iter_size)


def compute_basis(found: argparse.Namespace, *, measure: bool) -> str:
    """Where the compute times come from."""
    if measure:
        return "measured on this machine, layer by layer"
    if found.compute_ms is not None:
        return f"{found.compute_ms:g} ms per iteration as given, spread over layers by multiplications"
    return f"estimated from multiplications at {found.gpu_flops / 1e12:g} TFLOP/s"


def _print_rich(plan: CommPlan, above: Sequence[str]) -> None:
    parts = plan_table(plan)
    console = Console(highlight=False)
    for line in (*above, *parts.above):
        console.print(line, markup=False, soft_wrap=True)
    table = Table(pad_edge=False)
    for heading in HEADINGS:
        table.add_column(
            heading,
            justify="right" if is_right_aligned(heading) else "left",
            no_wrap=True,
            style="bold" if heading == "scheme" else None,
        )
    for row in parts.rows:
        table.add_row(*row)
    console.print(table)
    for line in parts.below:
        console.print(line, markup=False, soft_wrap=True)
