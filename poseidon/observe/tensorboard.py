"""TensorBoard as a sink: curves of every metric, the plan and the configuration as text, histograms on demand.

Histograms are rank 0's: parameters after the update, gradients as its own backward pass gave them, before they are
averaged. Where a gradient leaves as factors or rows there is no dense one to show.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn

from poseidon.errors import RecordError
from poseidon.observe.event_file import EventFile, Histogram
from poseidon.observe.scalars import scalars_of
from poseidon.plan import CommPlan
from poseidon.record import Facts, Metric
from poseidon.solver import Solver, events

_NUM_BUCKETS = 64

_log = logging.getLogger(__name__)


class TensorBoard:
    """`every` so many iterations parameters and gradients are shown as histograms; 0: never."""

    def __init__(self, folder: str, solver: Solver, every: int = 0) -> None:
        self.line = f"curves    tensorboard --logdir {folder}"
        self._file = EventFile(folder)
        self._histograms = Histograms(solver, self._file, every) if every else None

    def begin(self, facts: Facts) -> None:
        plan = facts.plan_json()
        if plan is not None:
            self._file.text("plan", _literal(CommPlan.from_json(plan).table()))
        rows = "".join(f"| {name} | {value} |\n" for name, value in facts.configuration.items())
        self._file.text("configuration", f"| setting | value |\n|---|---|\n{rows}")
        self._file.text("net", _literal(facts.net))

    def write(self, metric: Metric) -> None:
        self._file.scalars(scalars_of(metric), metric.iteration)

    def end(self, facts: Facts) -> None:
        if self._histograms is not None:
            self._histograms.close()
        self._file.text("outcome", facts.outcome or "")
        self._file.close()


def _literal(text: str) -> str:
    """Markdown that shows lines as they are."""
    return "".join(f"    {line}\n" for line in text.splitlines())


class Histograms:
    """Made before the solver becomes one of several: gradients are seen before they leave."""

    def __init__(self, solver: Solver, file: EventFile, every: int) -> None:
        self._solver, self._file, self._every = solver, file, every
        self._grads: dict[str, Tensor] = {}
        self._hooks = [
            entry.value.register_post_accumulate_grad_hook(self._keeper(f"{entry.layer}/{entry.index}"))
            for entry in solver.net.learnable
            if entry.value.requires_grad
        ]
        solver.listeners.append(self._hear)

    def close(self) -> None:
        """Harmless if called twice."""
        for hook in self._hooks:
            hook.remove()
        if self._hear in self._solver.listeners:
            self._solver.listeners.remove(self._hear)

    def _keeper(self, name: str) -> Callable[[nn.Parameter], None]:
        def keep(parameter: nn.Parameter) -> None:
            if self._solver.iter % self._every == 0 and parameter.grad is not None:
                grad = parameter.grad.detach()
                # A copy: sums over workers are taken in place.
                self._grads[name] = (grad.coalesce().values() if grad.is_sparse else grad).clone()

        return keep

    def _hear(self, event: events.Event) -> None:
        if not isinstance(event, events.IterationDone) or event.iteration % self._every:
            return
        self._solver.updates.drain()
        learnable = self._solver.net.learnable
        shown = {f"parameters/{entry.layer}/{entry.index}": entry.value.detach() for entry in learnable}
        shown |= {f"gradients/{name}": grad for name, grad in self._grads.items()}
        self._grads.clear()
        found = {name: histogram for name, values in shown.items() if (histogram := histogram_of(values)) is not None}
        try:
            self._file.histograms(found, event.iteration)
        except RecordError as problem:
            _log.warning("%s; there are no more histograms, training goes on", problem)
            self.close()


def histogram_of(values: Tensor) -> Histogram | None:
    """Of the finite ones, in buckets of one width; None if there is none."""
    flat = values.reshape(-1).double()
    flat = flat[flat.isfinite()]
    if not flat.numel():
        return None
    least, most = float(flat.min()), float(flat.max())
    if least == most:
        limits, counts = [most], [float(flat.numel())]
    else:
        limits = torch.linspace(least, most, _NUM_BUCKETS + 1, dtype=torch.float64)[1:].tolist()
        counts = torch.histc(flat, _NUM_BUCKETS, least, most).tolist()
    return Histogram(least, most, flat.numel(), float(flat.sum()), float(flat.square().sum()), limits, counts)
