"""Pending: what stands in a parameter's `grad` while the gradient itself is on its way to the optimizer.

With `overlap` the averaged gradient arrives when the network has it, after backward and often after step. Whatever
reads `grad` in between would see nothing, or half of it: any operation on this stand-in raises and says what to do.
Zeroing it once the step is taken is harmless, and allowed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from poseidon.errors import UsageError

_LOOKS = frozenset(
    ("__get__", "__repr__", "__hash__", "__len__", "size", "dim", "stride", "is_floating_point", "numel")
)
_ZEROING = frozenset(("zero_", "detach_", "requires_grad_", "_foreach_zero_"))


class PendingGrad(Tensor):
    """Has the parameter's shape and type, and one element of memory."""

    _poseidon_stepped: list[bool]

    @staticmethod
    def like(parameter: Tensor, stepped: list[bool]) -> PendingGrad:
        """`stepped` holds whether the optimizer's step was taken; all stand-ins of an iteration share it."""
        found: Any = torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand(parameter.shape)
        found = found.as_subclass(PendingGrad)
        found._poseidon_stepped = stepped
        return found

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        if name in _LOOKS:
            return super().__torch_function__(func, types, args, kwargs or {})
        if name in _ZEROING and _all_stepped(args):
            return args[0]
        raise UsageError(
            f"a gradient was read ({name}) that poseidon.overlap has handed to the optimizer. To clip, pass "
            "poseidon.overlap(…, max_norm=…); for GradScaler, clip_grad_norm_ and whatever else needs gradients "
            "between backward and step, use Parallel without overlap"
        )


def _all_stepped(args: Any) -> bool:
    tensors = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
    return all(tensor._poseidon_stepped[0] for tensor in tensors if isinstance(tensor, PendingGrad))
