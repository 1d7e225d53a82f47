"""Program: a graph made ready to run as one autograd graph.

Each step knows which blobs it is the last to read, so activations live exactly as long as autograd needs them. Two
things are decided here once, instead of on every pass:

- in place: a layer written with top == bottom may overwrite its bottom's memory only where that memory is fresh
  (its producer made it and its producer's backward pass does not read it);
- fusion: BatchNorm followed by its Scale runs as one kernel, as a hand-written net would have it.

Whoever wants to see layers run sets `observer`: it is given each layer's work to do, and does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from poseidon.net.graph import Graph, Node
from poseidon.net.layers.batch_norm import BatchNorm
from poseidon.net.layers.scale import Scale

# Carries out a layer's forward pass, and returns what it gives.
Observer = Callable[[Node, Callable[[], Any]], Any]


@dataclass(slots=True)
class Step:
    """One call: a node, or a BatchNorm node together with the Scale that follows it."""

    node: Node
    scale: Scale | None = None
    frees: tuple[str, ...] = ()
    follows_graph: bool = True

    def run(self, bottoms: list[Tensor]) -> tuple[Tensor, ...]:
        node = self.node
        for i, needed in enumerate(node.bottom_needs_grad):
            if self.follows_graph and not needed and bottoms[i].requires_grad:
                bottoms[i] = bottoms[i].detach()
        if self.scale is None:
            made = node.layer(*bottoms)
        else:
            assert isinstance(node.layer, BatchNorm)
            made = node.layer.normalize(bottoms[0], self.scale.param(0), self.scale.param(1))
        return made if isinstance(made, tuple) else (made,)


class Program:
    """The steps of a graph. `feeds` are the nodes that read no blob; they run first and outside any compilation.

    `absorbed` names the blobs that fusion never makes; a caller who wants one runs a program with `fuse=False`.
    """

    def __init__(self, graph: Graph, *, fuse: bool = True) -> None:
        self._graph = graph
        # A net without a loss is used as part of something larger: torch's own rule decides what gets a gradient.
        self.open_ended = not graph.has_loss and not any(node.needs_backward for node in graph.nodes)
        _allow_overwriting(graph)
        self.feeds = [node for node in graph.nodes if not node.bottoms]
        nodes = [node for node in graph.nodes if node.bottoms]
        self.steps = _fused(nodes) if fuse else [Step(node) for node in nodes]
        _mark_last_readers(self.steps)
        made = {name for step in self.steps for name in step.node.tops}
        self.absorbed = {name for node in nodes for name in node.tops} - made
        for step in self.steps:
            step.follows_graph = not self.open_ended
        self.observer: Observer | None = None

    def feed(self, node: Node) -> Any:
        """What a layer that reads no blob gives."""
        return node.layer() if self.observer is None else self.observer(node, node.layer)

    def run(self, values: dict[str, Tensor], keep: Iterable[str]) -> Tensor | None:
        """Runs all steps on `values` (blob name -> tensor, changed in place) and returns the weighted loss.

        Blobs are dropped after their last reader unless named in `keep`.
        """
        kept = set(keep)
        losses = [part for node in self.feeds for part in _loss_parts(node, values)]
        for step in self.steps:
            node = step.node
            bottoms = [values[name] for name in node.bottoms]
            if node.needs_backward or self.open_ended:
                tops = self._tops(step, bottoms)
            else:
                with torch.no_grad():
                    tops = self._tops(step, bottoms)
            del bottoms
            for name in step.frees:
                if name not in kept:
                    values.pop(name, None)
            values.update(zip(node.tops, tops, strict=True))
            losses += _loss_parts(node, values)
        return _total(losses, self._graph.weight)

    def _tops(self, step: Step, bottoms: list[Tensor]) -> tuple[Tensor, ...]:
        if self.observer is None:
            return step.run(bottoms)
        made: tuple[Tensor, ...] = self.observer(step.node, partial(step.run, bottoms))
        return made


def _loss_parts(node: Node, values: dict[str, Tensor]) -> list[Tensor]:
    parts = []
    for name, weight in zip(node.tops, node.loss_weights, strict=True):
        if weight:
            value = values[name] if values[name].dim() == 0 else values[name].sum()
            parts.append(value if weight == 1 else value * weight)
    return parts


def _total(parts: list[Tensor], weight: float) -> Tensor | None:
    total: Tensor | None = None
    for part in parts:
        total = part if total is None else total + part
    return total if total is None or weight == 1 else total * weight


def _allow_overwriting(graph: Graph) -> None:
    producer: dict[str, Node] = {}
    for node in graph.nodes:
        source = producer.get(node.bottoms[0]) if node.bottoms else None
        fresh = source is not None and source.layer.fresh_top and source.layer.num_tops == 1
        node.layer.in_place = node.layer.overwrites_bottom and node.tops[:1] == node.bottoms[:1] and fresh
        producer.update(dict.fromkeys(node.tops, node))


def _fused(nodes: list[Node]) -> list[Step]:
    steps: list[Step] = []
    for node in nodes:
        if steps and _fuses(steps[-1].node, node):
            steps[-1] = _as_one(steps[-1].node, node)
        else:
            steps.append(Step(node))
    return steps


def _fuses(node: Node, after: Node) -> bool:
    """BatchNorm whose top only its own per-channel Scale (with bias) reads; splits make every reader the only one."""
    return (
        isinstance(node.layer, BatchNorm)
        and isinstance(after.layer, Scale)
        and after.bottoms == node.tops
        and not any(node.loss_weights)
        and after.layer.is_per_channel_affine
    )


def _as_one(node: Node, after: Node) -> Step:
    assert isinstance(after.layer, Scale)
    both = replace(
        node,
        tops=after.tops,
        loss_weights=after.loss_weights,
        needs_backward=node.needs_backward or after.needs_backward,
        bottom_needs_grad=[node.bottom_needs_grad[0] and after.bottom_needs_grad[0]],
    )
    return Step(both, scale=after.layer)


def _mark_last_readers(steps: list[Step]) -> None:
    last_reader: dict[str, int] = {}
    for position, step in enumerate(steps):
        last_reader.update(dict.fromkeys(step.node.bottoms, position))
    for position, step in enumerate(steps):
        step.frees = tuple(name for name in dict.fromkeys(step.node.bottoms) if last_reader[name] == position)
