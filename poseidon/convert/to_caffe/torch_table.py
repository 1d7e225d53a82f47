"""torch function name → how it becomes Caffe layers. To add one, write it in torch_layers.py or torch_arithmetic.py
with torch's own parameters after `net` and `name`.

Blobs come as `Value`, parameters and constants as arrays. A function returns the value, or a list of them for
functions that give several tensors; `Inexpressible` says why not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Leave values as they are (or cut fractions off indices, as Embed does).
SILENT = frozenset(
    {"contiguous", "clone", "detach", "to", "float", "long", "int", "requires_grad_", "alias", "type_as", "data"}
)
# Take a shape and a type only: what they give is a constant.
CONSTANT = frozenset({"new_zeros", "new_ones", "new_full", "new_tensor", "zeros_like", "ones_like", "full_like"})

FUNCTIONS: dict[str, Callable[..., Any]] = {}


def function(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(made: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            assert name not in FUNCTIONS, name
            FUNCTIONS[name] = made
        return made

    return add
