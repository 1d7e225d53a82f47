"""Pending: what stands in a parameter's `grad` while the gradient itself is on its way to the optimizer.

With `overlap` the averaged gradient arrives when the network has it, after backward and often after step. Whatever
reads `grad` in between would see nothing, or half of it: any operation on this stand-in raises and says what to do.
Once the step is taken it may be zeroed, as zero_grad(set_to_none=False) does: from then on it reads as zeros, and the
next backward pass puts a gradient in its place.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from poseidon.errors import UsageError

_LOOKS = frozenset(
    ("__get__", "__repr__", "__hash__", "__len__", "size", "dim", "stride", "is_floating_point", "numel")
)
_ZEROING = frozenset(("zero_", "detach_", "requires_grad_", "_foreach_zero_"))


@dataclass(slots=True)
class _Standing:
    """`stepped` holds whether the optimizer's step was taken; all stand-ins of an iteration share it."""

    stepped: list[bool]
    is_zeroed: bool = False


class PendingGrad(Tensor):
    """Has the parameter's shape and type, and one element of memory, which is zero."""

    _poseidon_standing: _Standing

    @staticmethod
    def like(parameter: Tensor, stepped: list[bool]) -> PendingGrad:
        return _with(_zeros(parameter.shape, parameter.dtype, parameter.device), _Standing(stepped))

    @property
    def is_zeroed(self) -> bool:
        """True once somebody has zeroed it, after the step: nothing is lost if it is dropped."""
        return self._poseidon_standing.is_zeroed

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        standings = [leaf._poseidon_standing for leaf in _pytree.tree_leaves((args, kwargs)) if _is_pending(leaf)]
        if name in _ZEROING and all(standing.stepped[0] for standing in standings):
            for standing in standings:
                standing.is_zeroed = standing.is_zeroed or name.endswith("zero_")
            return args[0]
        if name not in _LOOKS and not all(standing.is_zeroed for standing in standings):
            raise UsageError(
                f"a gradient was read ({name}) that poseidon.overlap has handed to the optimizer. To clip, pass "
                "poseidon.overlap(…, max_norm=…); for GradScaler, clip_grad_norm_ and whatever else needs gradients "
                "between backward and step, use Parallel without overlap; zero_grad() comes before backward or after "
                "step"
            )
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **(kwargs or {}))
        # An alias (`.data`) stands for the same gradient, and whoever zeroes it zeroes that.
        return _with(found, standings[0]) if name == "__get__" and isinstance(found, Tensor) else found


@functools.cache
def _zeros(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Made once for all stand-ins alike: nobody writes to them."""
    return torch.zeros((), dtype=dtype, device=device).expand(shape)


def _with(plain: Tensor, standing: _Standing) -> PendingGrad:
    found: Any = plain.as_subclass(PendingGrad)
    found._poseidon_standing = standing
    return found


def _is_pending(leaf: Any) -> bool:
    return isinstance(leaf, PendingGrad) and "_poseidon_standing" in vars(leaf)
