"""overlap: the optimizer runs parameter by parameter, as averaged gradients arrive.

    optimizer = poseidon.overlap(optimizer, model)

    backward()     returns while gradients are still on their way
    step()         updates what has arrived, and returns; what arrives later is updated then, in another thread
    model(…)       each layer waits for its own parameters, just before it reads them

The trajectory is the same as without: every parameter gets the same update, before anybody reads it. Learning rates and
all other settings are those at the time of `step`. `max_norm` clips the norm of all gradients together, as
torch.nn.utils.clip_grad_norm_ does; `step` then waits for all of them.

The handle is an Optimizer over the same groups and state: learning rate schedulers take it, or the optimizer inside.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from poseidon.errors import UsageError
from poseidon.parallel.parallel import Parallel
from poseidon.parallel.pending import PendingGrad
from poseidon.parallel.piecemeal import settings_of, step_some, takes_rows, why_not_piecemeal
from poseidon.parallel.replica import Replica
from poseidon.parallel.round import Round
from poseidon.parallel.taker import Taker

_CLIP_EPS = 1e-6  # as in clip_grad_norm_


def overlap(optimizer: Optimizer, model: nn.Module, *, max_norm: float | None = None) -> Overlapped:
    """The optimizer's stand-in for training a Parallel model; see the module's docstring."""
    if not isinstance(model, Parallel):
        raise UsageError(
            f"poseidon.overlap is for a model wrapped in poseidon.Parallel, got a {type(model).__name__}: wrap it first"
        )
    if isinstance(optimizer, Overlapped):
        raise UsageError("this optimizer overlaps already: pass the one that it was made from")
    if max_norm is not None and not max_norm > 0:
        raise UsageError(f"max_norm must be above 0, got {max_norm}")
    return Overlapped(optimizer, model, max_norm)


class Overlapped(Optimizer):
    """Steps as gradients arrive.

    falls_back   why it cannot, if so: then it waits for all gradients in backward and steps as usual
    norm         with max_norm: of all gradients in the last step, before clipping
    """

    def __init__(self, optimizer: Optimizer, model: Parallel, max_norm: float | None) -> None:
        # Not Optimizer's own: groups, state and hooks are the wrapped one's, and stay so when it loads a state.
        self.optimizer = optimizer
        self.max_norm = max_norm
        self.norm: Tensor | None = None
        self._model = model
        self.__dict__.update({key: own for key, own in vars(optimizer).items() if key.startswith("_optimizer_")})
        self._zero_grad_profile_name = optimizer._zero_grad_profile_name
        self.falls_back = why_not_piecemeal(optimizer)
        replica = model._replica
        self._taker: _Arriving | None = None
        if self.falls_back:
            warnings.warn(f"poseidon.overlap waits for all gradients: {self.falls_back}", stacklevel=3)
        elif replica is not None:
            self._taker = _Arriving(self, replica)
            replica.install(self._taker)
            # Whoever saves or loads the wrapped optimizer itself must not come between its updates.
            optimizer.register_state_dict_pre_hook(lambda _: self._wait())
            optimizer.register_load_state_dict_pre_hook(lambda _, state: self._wait())

    # -- the wrapped optimizer's ------------------------------------------------------------------------------------
    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        self._wait()
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.optimizer.defaults

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self._wait()
        self.optimizer.add_param_group(param_group)
        if self._taker is not None:
            self._taker.refresh()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def __repr__(self) -> str:
        return f"overlapped {self.optimizer!r}"

    # -- stepping ---------------------------------------------------------------------------------------------------
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        if self._taker is None or self._model.is_closed:
            return self._step_whole(closure)
        return self._step_arriving(self._taker, closure)

    @Optimizer.profile_hook_step
    def _step_arriving(self, taker: _Arriving, closure: Callable[[], Any] | None) -> Any:
        """Hooks around a step run once, around all of it; those after it find all parameters up to date."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        taker.step()
        vars(self.optimizer)["_opt_called"] = True  # what learning rate schedulers look for
        if self._optimizer_step_post_hooks:
            self._wait()
        return loss

    def _step_whole(self, closure: Callable[[], Any] | None) -> Any:
        if self.max_norm is not None:
            if closure is not None:
                raise UsageError("max_norm needs gradients before the step, so step takes no closure with it")
            params = [p for group in self.param_groups for p in group["params"]]
            self.norm = nn.utils.clip_grad_norm_(params, self.max_norm)
        return self.optimizer.step() if closure is None else self.optimizer.step(closure)

    def _wait(self) -> None:
        self._model.wait()


class _Arriving(Taker):
    """Takes rounds for an optimizer that steps parameter by parameter."""

    overlaps = True

    def __init__(self, handle: Overlapped, replica: Replica) -> None:
        self._handle, self._replica = handle, replica
        self._optimizer = handle.optimizer
        self._round: Round | None = None
        self._group_of: dict[str, int] = {}
        self.refresh()

    @property
    def needs_all_gradients(self) -> bool:  # type: ignore[override]
        return self._handle.max_norm is not None

    def refresh(self) -> None:
        known = self._replica.structure.named()
        strangers = 0
        self._group_of = {}
        for number, group in enumerate(self._optimizer.param_groups):
            for parameter in group["params"]:
                if parameter in known:
                    self._group_of[known[parameter]] = number
                else:
                    strangers += parameter.requires_grad and parameter.numel() > 0
        if strangers or not self._group_of:
            raise UsageError(
                f"{strangers} parameter(s) of the optimizer do not belong to the model given to poseidon.overlap: make "
                "the optimizer from the parameters of the model that is wrapped, one optimizer for each Parallel"
            )
        missing = [
            name
            for name, found in self._replica.structure.params.items()
            if found.parameter.requires_grad and name not in self._group_of
        ]
        if missing:
            raise UsageError(
                f"the optimizer lacks {len(missing)} parameter(s) of the model that learn ({', '.join(missing[:5])}): "
                "add them to a group, or freeze them with requires_grad_(False) before wrapping"
            )

    def wants_rows(self, parameter: nn.Parameter) -> bool:
        name = self._replica.structure.named()[parameter]
        number = self._group_of.get(name)
        if number is None or self._handle.max_norm is not None:
            return False
        return takes_rows(self._optimizer.param_groups[number], type(self._optimizer))

    # -- a round ----------------------------------------------------------------------------------------------------
    def take(self, replica: Replica, round_: Round, used: Callable[[str], bool]) -> None:
        if self._round is not None and not self._round.stepped[0]:
            self._round.collect()  # nobody stepped: gradients that zero_grad has dropped
        self._round = round_
        for name in replica.traffic.of:
            if used(name):
                parameter = replica.structure.params[name].parameter
                parameter.grad = PendingGrad.like(parameter, round_.stepped)
        round_.is_used = used

    def step(self) -> None:
        if self._replica.gradients.arrived:
            raise self._replica.gradients.unfinished()
        round_ = self._round
        if round_ is None or round_.stepped[0]:
            self._check_nothing_else()
            return
        self._check_grads(round_)
        settings = [settings_of(group) for group in self._optimizer.param_groups]
        is_used = round_.is_used  # not the round itself, which keeps `update`: a ring of the two would outlive the step

        def update(grads: Mapping[str, Tensor]) -> None:
            by_group: list[list[tuple[nn.Parameter, Tensor]]] = [[] for _ in settings]
            for name, grad in grads.items():
                if is_used(name):
                    parameter = self._replica.structure.params[name].parameter
                    by_group[self._group_of[name]].append((parameter, grad))
            step_some(self._optimizer, settings, by_group)

        if self._handle.max_norm is not None:
            self._replica.traffic.scheduler.drain()
            ready = round_.release(update)
            self._handle.norm = _clip(list(ready.values()), self._handle.max_norm)
        else:
            ready = round_.release(update)
        round_.stepped[0] = True
        if ready:
            update(ready)

    def end(self) -> None:
        """There will be no rounds any more: what was not stepped with is in `grad`, as without overlap."""
        round_ = self._round
        if round_ is None:
            return
        left = {} if round_.stepped[0] else round_.collect()
        for name, found in self._replica.structure.params.items():
            if isinstance(found.parameter.grad, PendingGrad):
                found.parameter.grad = left.get(name)

    def check_step(self, optimizer: Optimizer) -> None:
        if optimizer is self._optimizer:
            raise UsageError(
                "the optimizer was given to poseidon.overlap: step what that returned, not the optimizer itself"
            )

    def _check_nothing_else(self) -> None:
        """Steps without a round are as harmless as steps without gradients, as long as there are none."""
        params = (found.parameter for found in self._replica.structure.params.values())
        if any(p.grad is not None and not isinstance(p.grad, PendingGrad) for p in params):
            raise UsageError(
                "there are gradients, but no exchange: the last backward pass ran under no_sync(). Run the last one "
                "before step() outside of it, forward pass included"
            )

    def _check_grads(self, round_: Round) -> None:
        """Gradients were not touched since backward."""
        for name in self._replica.traffic.of:
            grad = self._replica.structure.params[name].parameter.grad
            if round_.is_used(name) and not isinstance(grad, PendingGrad):
                raise UsageError(
                    f"the gradient of {name!r} was changed or zeroed between backward and step. With poseidon.overlap "
                    "it is on its way by then: call zero_grad() before backward or after step, and use Parallel "
                    "without overlap if gradients have to be worked on"
                )


def _clip(grads: list[Tensor], max_norm: float) -> Tensor:
    """As clip_grad_norm_, over averaged gradients, which are the same on all workers."""
    dense = [grad.values() if grad.is_sparse else grad for grad in grads]
    norms = torch._foreach_norm(dense, 2.0) if dense else [torch.zeros(1)]
    norm = torch.linalg.vector_norm(torch.stack(list(norms)), 2.0)
    factor = (max_norm / (norm + _CLIP_EPS)).clamp(max=1.0)
    torch._foreach_mul_(dense, factor)
    return norm
