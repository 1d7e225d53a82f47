"""Holdings: a module's parameters, each handed out only when no update of it is on its way any more.

Gates (gates.py) know who reads what from the passes that were watched. A model may read more later: a branch it had not
taken, a weight of another layer's. Whoever asks a module for a parameter, by attribute or by going through all of them,
comes through here, whatever the passes before have done. What is kept elsewhere (an nn.LSTM's flat weights, a list of
one's own) does not, and only the gates wait for it.

A copy of the module (deepcopy, pickle) has an ordinary dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from poseidon.parallel.structure import Structure

Parameters = dict[str, nn.Parameter | None]


class Holdings(Parameters):
    """Stands in for a module's `_parameters`; `on_ask` is told the names of those that somebody asks for."""

    def __init__(self, plain: Parameters, names: dict[str, str], on_ask: Callable[[Iterable[str]], None]) -> None:
        super().__init__(plain)
        self._names, self._on_ask = names, on_ask

    @torch.compiler.disable
    def _ask(self, *attributes: str) -> None:
        self._on_ask([self._names[attribute] for attribute in attributes if attribute in self._names])

    def __getitem__(self, attribute: str) -> nn.Parameter | None:
        self._ask(attribute)
        return super().__getitem__(attribute)

    def get(self, attribute: str, default: Any = None) -> Any:
        self._ask(attribute)
        return super().get(attribute, default)

    def values(self) -> Any:
        self._ask(*self)
        return super().values()

    def items(self) -> Any:
        self._ask(*self)
        return super().items()

    def copy(self) -> Parameters:
        return dict(self.items())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (), None, None, iter(self.items())


def hold_parameters(model: nn.Module, structure: Structure, on_ask: Callable[[Iterable[str]], None]) -> list[nn.Module]:
    """Puts holdings into all modules that have parameters, but for those whose inside is closed. Returns them."""
    named = structure.named()
    held = []
    for name, module in model.named_modules():
        if not module._parameters or any(_is_inside(name, atom) for atom in structure.atoms):
            continue
        names = {own: named[parameter] for own, parameter in module._parameters.items() if parameter in named}
        vars(module)["_parameters"] = Holdings(module._parameters, names, on_ask)
        held.append(module)
    return held


def let_go(held: Iterable[nn.Module]) -> None:
    """The modules have ordinary dicts again."""
    for module in held:
        own = module._parameters
        vars(module)["_parameters"] = {name: dict.__getitem__(own, name) for name in own}


def _is_inside(name: str, atom: str) -> bool:
    return name == atom or atom == "" or name.startswith(f"{atom}.")
