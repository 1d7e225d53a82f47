"""Parts of parameters: what an exchange brings together and a rule is applied to.

A member is a parameter inside a unit. A region is a piece of a parameter's memory: a run of elements, or a slice of a
matrix's rows or columns. A part is a region of a member together with the gradient that has arrived for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


def flat(tensor: Tensor) -> Tensor:
    """All elements of a dense tensor as one axis over the same memory, in memory order."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    return torch.as_strided(tensor, (tensor.numel(),), (1,))


@dataclass(frozen=True, slots=True)
class Region:
    """Elements [start, stop) in memory order (axis None), or rows (0) or columns (1) [start, stop) of a matrix."""

    start: int
    stop: int
    axis: int | None = None

    def of(self, tensor: Tensor) -> Tensor:
        """This region of a tensor laid out like the parameter."""
        if self.axis is None:
            return flat(tensor)[self.start : self.stop]
        return tensor.narrow(self.axis, self.start, self.stop - self.start)


@dataclass(frozen=True, slots=True)
class Member:
    """A parameter and where its elements stand in the unit's flat memory."""

    name: str
    parameter: nn.Parameter
    offset: int

    @property
    def value(self) -> Tensor:
        """The parameter's memory, outside autograd: a late update must not look like tampering to its version check."""
        return self.parameter.data

    @property
    def num_elems(self) -> int:
        return self.parameter.numel()

    @property
    def whole(self) -> Region:
        return Region(0, self.num_elems)


@dataclass(frozen=True, slots=True)
class Part:
    """A region of a member, with the sum of all workers' gradients there. The rule may use up the gradient's memory.

    `everywhere`: all workers have this same part; otherwise it is this worker's alone.
    """

    member: Member
    region: Region
    grad: Tensor
    everywhere: bool = True


# Applies one iteration's rule to parts; the last argument is what the iteration was started with.
Apply = Callable[[Sequence[Part], Any], None]


def members_of(parameters: Sequence[tuple[str, nn.Parameter]]) -> list[Member]:
    """The members of a unit, one behind the other."""
    found, offset = [], 0
    for name, parameter in parameters:
        found.append(Member(name, parameter, offset))
        offset += parameter.numel()
    return found


def regions_within(members: Sequence[Member], start: int, stop: int) -> Iterator[tuple[Member, Region]]:
    """What elements [start, stop) of a unit are, member by member."""
    for member in members:
        first, last = max(start - member.offset, 0), min(stop - member.offset, member.num_elems)
        if first < last:
            yield member, Region(first, last)
