"""What `poseidon plan --sweep` does once its flags are read: profiles the net for each batch, plans, prints, draws."""

from __future__ import annotations

import argparse
import copy
from dataclasses import dataclass

from poseidon.cli.planning import compute_basis, profile_solver
from poseidon.plan import Axis, Cluster, NetProfile, PlanRequest, Setting, sweep, sweep_json, sweep_text
from poseidon.run.batch import batch_of
from poseidon.solver.nets import train_net
from poseidon.spec import caffe_pb2


@dataclass(frozen=True, slots=True)
class Asked:
    """What to change, from where, and how plans are to be made."""

    axes: tuple[Axis, ...]
    cluster: Cluster
    request: PlanRequest


def show_sweep(param: caffe_pb2.SolverParameter, asked: Asked, found: argparse.Namespace) -> None:
    """Prints what each change would give: a table, or JSON; and draws it if asked to."""
    batch = found.batch or batch_of(train_net(param).read())
    notes: list[str] = []

    def profile_of(other: int) -> NetProfile:
        flags = copy.copy(found)
        flags.batch = other
        if found.compute_ms is not None:  # as given for the batch as it is
            flags.compute_ms = found.compute_ms * other / batch
        trained = profile_solver(param, flags, measure=found.measure)
        notes[:] = trained.notes
        return trained.profile

    points = sweep(asked.axes, Setting(asked.cluster, batch), profile_of, asked.request, param.iter_size)
    if found.plot:
        from poseidon.tools.sweep_chart import draw_sweep

        draw_sweep(points, found.plot)
    if found.json:
        print(sweep_json(points))
        return
    rest = "; another batch's in proportion" if found.compute_ms is not None else ""
    print("\n".join([f"compute   {compute_basis(found, measure=found.measure)}{rest}", *notes]))
    print(f"now       {asked.cluster.describe()}, batch {batch} each")
    print()
    print(sweep_text(points))
    if found.plot:
        print(f"\ndrawn     {found.plot}")
