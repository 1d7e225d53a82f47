"""What `poseidon plan` does once its flags are read: builds the net, profiles it, plans, prints."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.table import Table

from poseidon.cli.devices import solver_device
from poseidon.cli.terminal import busy
from poseidon.net import Net
from poseidon.plan import Cluster, CommPlan, NetProfile, PlanRequest, make_plan, plan_table
from poseidon.plan.table import HEADINGS, is_right_aligned
from poseidon.run.batch import set_batch
from poseidon.run.layer_times import LayerTime, estimated_times, measured_times, scaled_times
from poseidon.run.profile import profile_net
from poseidon.solver.nets import NetOptions, train_net
from poseidon.spec import caffe_pb2


def show_plan(
    param: caffe_pb2.SolverParameter, cluster: Cluster, request: PlanRequest, found: argparse.Namespace
) -> None:
    """Prints the plan for a solver's net: a table, or JSON."""
    plan = make_plan(profile_solver(param, found), cluster, request)
    if found.json:
        print(plan.to_json())
    elif sys.stdout.isatty() and not found.plain:
        _print_rich(plan, found)
    else:
        print(f"compute   {compute_basis(found)}")
        print(plan.table())


def profile_solver(param: caffe_pb2.SolverParameter, found: argparse.Namespace) -> NetProfile:
    """The profile of the net a solver trains."""
    choice = train_net(param)
    source = choice.read()
    if found.batch is not None:
        set_batch(source, found.batch)
    device = solver_device(param, found.gpu) if found.measure else "cpu"
    net = choice.build(source, max(param.random_seed, 0), NetOptions(device=device))
    return profile_net(
        net,
        _times(net, found, param.iter_size),
        iter_size=param.iter_size,
        needs_all_gradients=param.clip_gradients >= 0,
    )


def _times(net: Net, found: argparse.Namespace, iter_size: int) -> list[LayerTime]:
    if found.measure:
        with busy("measuring layers"):
            return measured_times(net)
    times = estimated_times(net, found.gpu_flops)
    if found.compute_ms is None:
        return times
    return scaled_times(times, found.compute_ms / 1e3 / iter_size)


def compute_basis(found: argparse.Namespace) -> str:
    """Where the compute times come from."""
    if found.measure:
        return "measured on this machine, layer by layer"
    if found.compute_ms is not None:
        return f"{found.compute_ms:g} ms per iteration as given, spread over layers by multiplications"
    return f"estimated from multiplications at {found.gpu_flops / 1e12:g} TFLOP/s"


def _print_rich(plan: CommPlan, found: argparse.Namespace) -> None:
    parts = plan_table(plan)
    console = Console(highlight=False)
    for line in (f"compute   {compute_basis(found)}", *parts.above):
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
