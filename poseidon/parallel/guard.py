"""Guard: an optimizer that steps at the wrong moment, or is the wrong one, is stopped before it does harm.

torch calls every optimizer's pre-hooks before its step; one hook per Parallel looks whether the optimizer holds
parameters of its model.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook


def guard(parameters: list[nn.Parameter], check: Callable[[Optimizer], None]) -> Any:
    """Calls `check` before any optimizer steps that holds one of the parameters; returns the hook's handle."""
    ours = {id(parameter) for parameter in parameters}
    method = weakref.WeakMethod(check)

    def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        found = method()
        if found is not None and any(id(p) in ours for group in optimizer.param_groups for p in group["params"]):
            found(optimizer)

    return register_optimizer_step_pre_hook(hook)
