"""Piecemeal: an optimizer's step on some of its parameters, with gradients that are not in `grad`.

The step runs on stand-ins: each is a detached alias of its parameter, with the gradient as its `grad` and the
parameter's own entry of the optimizer's state. So the state is where it always is, in the optimizer's `state_dict`, and
nobody who empties `grad` in another thread can take an update away. In-place changes through a detached alias count in
the parameter's version: whoever has read it too early for a later backward pass is told by autograd.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

# Each parameter's update depends on nothing but that parameter, its gradient and its state.
_PER_PARAMETER = (
    "ASGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
    "SparseAdam",
)
PER_PARAMETER = tuple(getattr(torch.optim, name) for name in _PER_PARAMETER if hasattr(torch.optim, name))


def why_not_piecemeal(optimizer: Optimizer) -> str:
    """Why an optimizer cannot step parameter by parameter; empty if it can."""
    kind = type(optimizer)
    if kind not in PER_PARAMETER:
        return f"{kind.__name__} is not known to update each parameter by itself"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return "it has hooks around its step, which expect one step for all parameters"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "it is differentiable"
    return ""


def takes_rows(group: Mapping[str, Any], kind: type[Optimizer]) -> bool:
    """True if updating the rows of a gradient that are not zero is the same as updating all."""
    if kind is torch.optim.SGD:
        return not (group["momentum"] or group["weight_decay"] or group["maximize"])
    if kind is torch.optim.Adagrad:
        return not (group["weight_decay"] or group["maximize"])
    return False


def settings_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter group without its parameters: what a step depends on besides them."""
    settings = {key: value for key, value in group.items() if key not in ("params", "param_names")}
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in settings.items()}


def step_some(
    optimizer: Optimizer, settings: Sequence[Mapping[str, Any]], grads: Sequence[Sequence[tuple[nn.Parameter, Tensor]]]
) -> None:
    """One step, with these settings, by group, on these parameters and gradients of each group."""
    groups: list[dict[str, Any]] = []
    state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
    for own, pairs in zip(settings, grads, strict=True):
        stand_ins = []
        for parameter, grad in pairs:
            stand_in = parameter.detach()
            stand_in.grad = grad
            state[stand_in] = optimizer.state[parameter]
            stand_ins.append(stand_in)
        groups.append({**own, "params": stand_ins})
    double = object.__new__(type(optimizer))
    double.__dict__.update(optimizer.__dict__)
    double.__dict__.update(state=state, param_groups=groups)
    step: Any = type(optimizer).step
    step.__wrapped__(double)  # without torch's hooks around it, which expect one step for all parameters
