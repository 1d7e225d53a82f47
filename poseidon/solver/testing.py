"""One test: a test net run over `num_batches` batches, its outputs averaged element by element.

Sums stay on the device until the last batch. Before every batch somebody may ask to stop. A team deals the batches out
(`team.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from poseidon.errors import SolverError
from poseidon.net.net import Net
from poseidon.solver.events import OutputValue
from poseidon.solver.passes import Pass
from poseidon.solver.team import Alone, Sums, Team


@dataclass(frozen=True, slots=True)
class TestScores:
    """Means over the batches of a test; None for a loss nobody asked for."""

    __test__ = False  # not a test class, whatever pytest thinks of the name
    loss: float | None
    outputs: tuple[OutputValue, ...]


def run_test(
    net: Net,
    run: Pass,
    num_batches: int,
    is_stopped: Callable[[], bool],
    *,
    compute_loss: bool,
    team: Team | None = None,
) -> TestScores | None:
    """The scores, or None if it was stopped."""
    outputs: dict[str, Tensor] = {}
    loss = torch.zeros((), device=net.device)
    deal = (team or Alone()).deal(net, num_batches)
    for has_batch in deal.rounds():
        if is_stopped():
            return None
        if has_batch:
            result = run(backward=False)
            loss = loss + result.loss
            for name, value in result.outputs.items():
                outputs[name] = _added(outputs.get(name), value, name)
    means = deal.means(Sums(loss, outputs))
    return TestScores(float(means.loss) if compute_loss else None, output_values(net, means.outputs))


def output_values(net: Net, outputs: Mapping[str, Tensor]) -> tuple[OutputValue, ...]:
    """Every element of every output blob, with the blob's loss weight."""
    weights = {
        name: weight for node in net.graph.nodes for name, weight in zip(node.tops, node.loss_weights, strict=True)
    }
    return tuple(
        OutputValue(name, value, weights[name])
        for name in net.outputs
        if name in outputs
        for value in outputs[name].detach().reshape(-1).tolist()
    )


def _added(total: Tensor | None, value: Tensor, name: str) -> Tensor:
    value = value if value.is_floating_point() else value.float()
    if total is None:
        return value.clone()
    if total.shape != value.shape:
        raise SolverError(
            f"output {name!r} of the test net had shape {tuple(total.shape)} in one batch and {tuple(value.shape)} in "
            "another; its mean over a test needs the same shape in all"
        )
    return total + value
