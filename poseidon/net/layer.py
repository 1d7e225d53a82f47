"""Layer: one step of a net, as an nn.Module that keeps Caffe's contract.

Life of a layer:

    layer = SomeLayer(spec, context)     options read and checked (no shapes known yet)
    layer.setup(bottom_shapes)           once: parameters are made with `add_param`
    layer.reshape(bottom_shapes)         whenever shapes change: checks bottoms, returns top shapes
    layer(*bottoms) -> top or tops       tensors in, tensors out; differentiable by autograd

`reshape` is the promise, `forward` keeps it: the tests compare the two for every registered layer. `forward` never
writes to a bottom unless it is called with `self.in_place` true, which the net sets only where that is safe.

A class declares its contract in class variables: `bottoms`, `tops` (how many), `auto_tops`, `same_count`,
`unforced_bottoms` (bottoms that `force_backward` leaves alone, as Caffe does for labels), `overwrites_bottom` (it can
run in place on memory), `fresh_top` (its top is new memory that its own backward pass never reads, so that the next
layer may overwrite it) and `views_bottom` (its tops are the bottom's memory in other shapes).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from poseidon.errors import LayerError
from poseidon.net import fillers
from poseidon.net.draws import Draws
from poseidon.net.memory import MemoryBudget
from poseidon.spec import caffe_pb2

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Count:
    """How many blobs a layer takes or gives; `most` None: no upper bound."""

    least: int
    most: int | None

    def admits(self, number: int) -> bool:
        return self.least <= number and (self.most is None or number <= self.most)

    def __str__(self) -> str:
        if self.most is None:
            return f"at least {self.least}"
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


def exactly(number: int) -> Count:
    return Count(number, number)


def at_least(number: int) -> Count:
    return Count(number, None)


def between(least: int, most: int) -> Count:
    return Count(least, most)


@dataclass(frozen=True, slots=True)
class LayerContext:
    """What a layer may know about the net it is in."""

    phase: int = caffe_pb2.TRAIN
    where: str = "<text>"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    draws: Draws = field(default_factory=lambda: Draws(0))
    memory: MemoryBudget = field(default_factory=MemoryBudget)
    frozen: bool = False


class Layer(nn.Module, ABC):
    """Base of all layers; see the module's docstring for the contract."""

    bottoms: ClassVar[Count] = exactly(1)
    tops: ClassVar[Count] = exactly(1)
    same_count: ClassVar[bool] = False
    auto_tops: ClassVar[bool] = False
    unforced_bottoms: ClassVar[frozenset[int]] = frozenset()
    overwrites_bottom: ClassVar[bool] = False
    fresh_top: ClassVar[bool] = False
    views_bottom: ClassVar[bool] = False
    is_loss: ClassVar[bool] = False

    def __init__(self, spec: caffe_pb2.LayerParameter, context: LayerContext) -> None:
        super().__init__()
        self.spec = spec
        self.context = context
        self.in_place = False
        # Called with a parameter's index before `forward` reads it: whoever changes parameters from another thread
        # waits here until that one is up to date.
        self.gate: Callable[[int], None] | None = None
        self.num_tops = len(spec.top)
        self.param_shapes: list[Shape] = []
        self.check_counts()

    # -- identity ---------------------------------------------------------------------------------------------------
    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def type_name(self) -> str:
        return self.spec.type

    @property
    def training_phase(self) -> bool:
        """True in Caffe's TRAIN phase (not torch's `training` flag: a net's phase is fixed when it is built)."""
        return self.context.phase == caffe_pb2.TRAIN

    # -- to be written by each layer --------------------------------------------------------------------------------
    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        """Makes the parameters. Layers without parameters leave it out."""

    @abstractmethod
    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        """Checks the bottoms and returns the shape of every top."""

    def initial_tops(self) -> Sequence[Tensor | None]:
        """What the tops hold before the first forward pass, where that is not zeros; nothing at all: zeros for all."""
        return ()

    def default_loss_weight(self, top_index: int) -> float:
        """Loss weight of a top for which the prototxt gives none: 1 for a loss layer's first top."""
        return 1.0 if self.is_loss and top_index == 0 else 0.0

    def allows_forced_backward(self, bottom_index: int) -> bool:
        return bottom_index not in self.unforced_bottoms

    # -- parameters -------------------------------------------------------------------------------------------------
    def add_param(self, shape: Sequence[int], filler: Any = None, *, learned: bool = True) -> None:
        """Appends a parameter blob filled by a FillerParameter (None: zeros), with its own random stream.

        `learned=False` is for statistics that forward itself maintains: saved and loaded like any other blob, but
        never given a gradient.
        """
        index = len(self.param_shapes)
        shape = tuple(int(n) for n in shape)
        refusal = self.context.memory.take(shape, self.context.dtype.itemsize)
        if refusal is not None:
            raise self.error(f"parameter {index} of shape {text_of(shape)} would need {refusal}")
        # Drawn in float32 whatever the net computes in: a seed names the same net in every precision.
        value = torch.zeros(shape, dtype=torch.float32)
        if filler is not None:
            try:
                fillers.fill(value, filler, self.context.draws.generator("filler", self.name, index))
            except ValueError as problem:
                raise self.error(f"parameter {index}: {problem}") from None
        self.param_shapes.append(shape)
        self.register_parameter(
            str(index), nn.Parameter(value.to(self.context.device, self.context.dtype), requires_grad=learned)
        )

    def param(self, index: int) -> Tensor:
        """The parameter as forward uses it: in this layer's own shape even if its owner keeps another."""
        if self.gate is not None:
            self.gate(index)
        owner = self._parameters[str(index)]
        assert owner is not None
        shape = self.param_shapes[index]
        return owner if owner.shape == shape else owner.view(shape)

    @property
    def num_params(self) -> int:
        return len(self.param_shapes)

    def param_owner(self, index: int) -> nn.Parameter:
        owner = self._parameters[str(index)]
        assert owner is not None
        return owner

    def share_param(self, index: int, owner: nn.Parameter) -> None:
        """Takes another layer's parameter in place of the own one; gradients then add up in the owner."""
        self._parameters[str(index)] = owner

    # -- checks -----------------------------------------------------------------------------------------------------
    def error(self, message: str) -> LayerError:
        """An error that names this layer and where it stands in the prototxt."""
        return LayerError(f"{self.context.where}: layer {self.name!r} ({self.type_name}): {message}")

    def check_counts(self) -> None:
        num_bottoms = len(self.spec.bottom)
        if not self.bottoms.admits(num_bottoms):
            raise self.error(f"takes {self.bottoms} bottom blob(s), got {num_bottoms}")
        num_tops = len(self.spec.top)
        if not self.tops.admits(num_tops) and not (self.auto_tops and num_tops < self.tops.least):
            raise self.error(f"gives {self.tops} top blob(s), got {num_tops}")
        if self.same_count and num_bottoms != num_tops:
            raise self.error(f"gives one top per bottom, got {num_bottoms} bottom(s) and {num_tops} top(s)")

    def check_room(self, what: str, shape: Shape) -> None:
        """Refuses something that no memory could hold."""
        refusal = self.context.memory.refusal(shape, self.context.dtype.itemsize)
        if refusal is not None:
            raise self.error(f"{what} of shape {text_of(shape)} would need {refusal}")

    def axis(self, axis: int, shape: Shape, what: str = "axis") -> int:
        """Caffe's canonical axis: -1 is the last; out of range is an error."""
        if not -len(shape) <= axis < len(shape):
            raise self.error(f"{what} {axis} is out of range for a bottom of shape {text_of(shape)}")
        return axis % len(shape)

    def labels(self, bottom: Tensor) -> Tensor:
        """A label or index bottom as integers. Caffe keeps them as floats, and never back-propagates to them."""
        if bottom.requires_grad and torch.is_grad_enabled() and self.training_phase:
            raise self.error("cannot back-propagate to its label bottom; set propagate_down to false for it")
        return bottom.detach().long()


def text_of(shape: Sequence[int]) -> str:
    """A shape for people: `64 x 3 x 28 x 28`, a scalar as `()`."""
    return " x ".join(str(n) for n in shape) if len(shape) else "()"


def count_of(shape: Sequence[int], start: int = 0, end: int | None = None) -> int:
    """Number of elements over the axes [start, end)."""
    total = 1
    for extent in shape[start:end]:
        total *= extent
    return total
