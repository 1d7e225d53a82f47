"""ModelSource: a PyTorch model being written as text, and Writing: what one layer's emitter works with.

An emitter returns Python: one expression per top, or one for all of them.

    def threshold(w: Writing) -> str:
        return f"({w.x} > {number(w.spec.threshold_param.threshold)}).float()"

`w.module("nn.Linear(10, 5)", weight=…, bias=…)` declares a member and gives `self.fc1`; `w.part(function)` takes a
helper from parts.py along into the text and gives its name.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn

from poseidon.convert.extents import Dims
from poseidon.convert.outgoing import OutgoingLayer
from poseidon.convert.steps import ConvertStep
from poseidon.convert.to_torch import parts
from poseidon.net.layer import Layer

# Names that forward's text itself uses; helpers are all reserved, for one may be needed after a variable is named.
_RESERVED_VARIABLES = frozenset({"self", "torch", "nn", "F", "len", "float", "True", "False", *vars(parts)})
_RESERVED_MEMBERS = frozenset(dir(nn.Module()))


@dataclass(slots=True)
class ModelSource:
    """The text so far: members (for __init__), lines (for forward), parts, and the values of the state dict."""

    members: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    parts: list[Callable[..., Any]] = field(default_factory=list)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    _member_names: set[str] = field(default_factory=set)
    _shared: dict[tuple[Any, ...], str] = field(default_factory=dict)
    _variables: dict[str, str] = field(default_factory=dict)

    def variable(self, blob: str) -> str:
        """The variable of a blob: its name as far as Python takes it."""
        if blob not in self._variables:
            taken = {*self._variables.values(), *_RESERVED_VARIABLES}
            self._variables[blob] = _identifier(blob, taken)
        return self._variables[blob]

    def member_name(self, layer: str) -> str:
        name = _identifier(layer, self._member_names | _RESERVED_MEMBERS)
        self._member_names.add(name)
        return name

    def use(self, part: Callable[..., Any]) -> str:
        if part not in self.parts:
            self.parts.append(part)
        return part.__name__


class Writing(OutgoingLayer):
    """One layer on its way into a model."""

    def __init__(self, source: ModelSource, layer: Layer, inputs: Sequence[str], step: ConvertStep) -> None:
        super().__init__(layer, inputs, step)
        self.source = source
        self.absorbed = step.scale  # its parameters go into this layer's module

    def part(self, part: Callable[..., Any]) -> str:
        return self.source.use(part)

    # -- members ----------------------------------------------------------------------------------------------------
    def module(self, constructor: str, **tensors: np.ndarray) -> str:
        """`self.name`, made by `constructor` and with these values; layers that share all of it are one member."""
        layers = [self.layer] if self.absorbed is None else [self.layer, self.absorbed]
        owners = tuple(id(layer.param_owner(i)) for layer in layers for i in range(layer.num_params))
        key = (constructor, *owners)
        if owners and key in self.source._shared:
            return self.source._shared[key]
        name = self.source.member_name(self.layer.name)
        self.source.members.append(f"self.{name} = {constructor}")
        for tensor, value in tensors.items():
            self.source.tensors[f"{name}.{tensor}"] = value
        if owners:
            self.source._shared[key] = f"self.{name}"
        return f"self.{name}"

    def parameter(self, suffix: str, value: np.ndarray, *, learned: bool = True) -> str:
        """A bare tensor of the model's own."""
        name = self.source.member_name(f"{self.layer.name}_{suffix}")
        empty = f"torch.empty({', '.join(map(str, value.shape))})" if value.shape else "torch.empty(())"
        if learned:
            self.source.members.append(f"self.{name} = nn.Parameter({empty})")
        else:
            self.source.members.append(f'self.register_buffer("{name}", {empty})')
        self.source.tensors[name] = value
        return f"self.{name}"

    # -- expressions ------------------------------------------------------------------------------------------------
    def reshaped(self, value: str, source: Dims, target: Dims) -> str:
        """`value` of extents `source` as `target`."""
        if source == target:
            return value
        dims, unknown = [], 0
        for axis, dim in enumerate(target):
            if not isinstance(dim, str):
                dims.append(str(dim))
            elif axis < len(source) and source[axis] == dim and value.isidentifier():
                dims.append(f"{value}.shape[{axis}]")
            else:
                unknown += 1
                dims.append("-1")
        if unknown > 1:
            raise self.error("more than one extent changes with the batch here; convert with --fixed-batch")
        return f"{value}.reshape({', '.join(dims)})" if dims else f"{value}.reshape(())"


def number(value: float) -> str:
    """A float32 in as few digits as tell it from its neighbours."""
    short = float(str(np.float32(value)))
    if short != short or short in (float("inf"), float("-inf")):
        return f'float("{short}")'
    return str(int(short)) if short.is_integer() and abs(short) < 2**31 else repr(short)


def affine(value: str, scale: float, shift: float) -> str:
    """scale · value + shift, as one would write it."""
    if scale != 1:
        value = f"{number(scale)} * {value}"
    if shift == 0:
        return value
    return f"{value} - {number(-shift)}" if shift < 0 else f"{value} + {number(shift)}"


def group(expression: str) -> str:
    """In parentheses, unless it is a name or a number."""
    return expression if re.fullmatch(r"[\w.]+", expression) else f"({expression})"


def sizes(values: Sequence[int]) -> str:
    """One number where all are the same, else a tuple."""
    return str(values[0]) if len(set(values)) == 1 else f"({', '.join(map(str, values))})"


def arguments(*positional: object, **named: object) -> str:
    """What goes between parentheses; named ones that are None are left out."""
    parts = [str(value) for value in positional]
    return ", ".join(parts + [f"{name}={value}" for name, value in named.items() if value is not None])


def _identifier(name: str, taken: set[str] | frozenset[str]) -> str:
    word = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "blob"
    if word[0].isdigit() or keyword.iskeyword(word):
        word = f"_{word}"
    found, count = word, 1
    while found in taken or keyword.iskeyword(found):
        count += 1
        found = f"{word}_{count}"
    return found
