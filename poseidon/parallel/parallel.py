"""Parallel: any torch.nn.Module, trained by several workers; a drop-in for DistributedDataParallel.

    model = poseidon.Parallel(model)
    ...
    loss = criterion(model(batch), labels)
    loss.backward()          # gradients leave as they become final; `grad` has the averages when backward returns
    optimizer.step()

Each worker has its own share of the batch, and after backward the mean of all workers' gradients. How a gradient
travels (dense, as factors of a Linear, as rows of an Embedding) is decided by a plan, made from what the first
iterations measure: `print(model.plan)`.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.optim import Optimizer

from poseidon.errors import UsageError
from poseidon.parallel.checkpoint import keep_bare_names
from poseidon.parallel.guard import guard
from poseidon.parallel.meeting import meet
from poseidon.parallel.planning import Wishes, first_plan
from poseidon.parallel.replica import Replica, ReplicaOptions
from poseidon.parallel.structure import find_structure
from poseidon.parallel.uneven import company
from poseidon.plan import CommPlan
from poseidon.transport import Transport


class Parallel(nn.Module, Joinable):
    """Wraps a model; see the module's docstring.

    process_group            of torch.distributed; None: the default one, or what the environment tells
    find_unused_parameters   the loss may depend on some of the parameters only
    broadcast_buffers        rank 0's buffers go to all before a forward pass
    schemes                  by pattern of parameter or module names: ring, factors or rows, whatever planners think;
                             or powersgd, of rank `powersgd_rank`, which is lossy and never chosen otherwise
    wire                     what dense gradients cross the network as: fp32 (their own width), bf16 or fp16
    bandwidth                of the links, like 1gbit, if it is not to be measured
    transport                for tests: instead of a process group
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        *,
        process_group: Any = None,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
        schemes: Mapping[str, str] | None = None,
        wire: str = "fp32",
        powersgd_rank: int = 2,
        bandwidth: str | None = None,
        transport: Transport | None = None,
    ) -> None:
        nn.Module.__init__(self)
        Joinable.__init__(self)
        device = _device_of(module, device_ids)
        self.module = module
        self._device, self._process_group = device, process_group
        wishes = Wishes(tuple((schemes or {}).items()), wire, bandwidth, powersgd_rank)
        options = ReplicaOptions(wishes, find_unused_parameters, broadcast_buffers)
        found = transport or meet(process_group, device)
        self._replica = Replica(module, found, options) if found is not None and found.size > 1 else None
        self._plan_alone: CommPlan | None = None
        if self._replica is None:
            structure = find_structure(module)
            wishes.check(structure)
            self._plan_alone = first_plan(structure, 1, wire).plan
        keep_bare_names(self)
        hook = guard(list(module.parameters()), self._check_step)
        own = found if transport is None else None
        self._finalizer = weakref.finalize(self, _part, self._replica, own, hook)

    # -- as DistributedDataParallel ---------------------------------------------------------------------------------
    @torch.compiler.disable
    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        replica = self._replica
        if replica is None:
            return self.module(*inputs, **kwargs)
        if self._join_config.enable:
            work = Join.notify_join_context(self)
            if work is not None:
                work.wait()
        else:
            replica.joining = False
        replica.before_forward((inputs, kwargs))
        with replica.watching():
            outputs = self.module(*inputs, **kwargs)
        replica.after_forward(outputs)
        return outputs

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forward and backward passes inside only add to `grad`, on each worker for itself."""
        replica = self._replica
        if replica is None:
            yield
            return
        before, replica.syncs = replica.syncs, False
        try:
            yield
        finally:
            replica.syncs = before

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """For `torch.distributed.algorithms.Join`: uneven inputs."""
        if self._replica is None:
            return JoinHook()
        return company(self._replica, kwargs)

    @property
    def join_device(self) -> torch.device:
        return self._device

    @property
    def join_process_group(self) -> Any:
        if not (self._process_group or dist.is_initialized()):
            raise UsageError(
                "Join counts workers over a process group of torch's: call torch.distributed.init_process_group() "
                "before wrapping the model"
            )
        return self._process_group or dist.group.WORLD

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """The bare model's, with its names; waits until none is on its way."""
        self.wait()
        return self.module.named_parameters(prefix, recurse, remove_duplicate)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        return self.module.named_buffers(prefix, recurse, remove_duplicate)

    # -- beyond it --------------------------------------------------------------------------------------------------
    @property
    def plan(self) -> CommPlan:
        """The plan in use; print it. A first one, until a few iterations were measured."""
        plan = self._plan_alone if self._replica is None else self._replica.plan
        assert plan is not None, "alone or not, there is one"
        return plan

    @property
    def is_planned(self) -> bool:
        """True once the plan in use was made from measurements."""
        return self._replica is None or self._replica.measuring is None

    def replan(self) -> None:
        """Measures the next iterations and makes a new plan. All workers call it in the same iteration."""
        if self._replica is not None:
            self._replica.replan()

    def wait(self) -> None:
        """Returns when no gradient and no parameter is on its way. See `poseidon.wait`."""
        if self._replica is not None:
            self._replica.wait()

    @property
    def is_closed(self) -> bool:
        return not self._finalizer.alive

    def close(self) -> None:
        """Ends the exchanges; the model and its optimizer can be used on without them."""
        self._plan_alone = self.plan
        self._finalizer()
        self._replica = None

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        """A copy of the bare model: an average, say, is no worker's replica."""
        self.wait()
        return copy.deepcopy(self.module, memo)

    def __getstate__(self) -> Any:
        raise UsageError("a Parallel has connections and cannot be pickled: save model.state_dict(), or model.module")

    def _check_step(self, optimizer: Optimizer) -> None:
        replica = self._replica
        if replica is None:
            return
        if replica.gradients.arrived:
            raise replica.gradients.unfinished()
        replica.taker.check_step(optimizer)


def wait(model: nn.Module) -> None:
    """Returns when all parameters of a Parallel model are up to date on this worker: before reading them directly.

    Forward passes, `state_dict`, `parameters()` of the Parallel and copies made through them wait by themselves.
    """
    if not isinstance(model, Parallel):
        raise UsageError(f"poseidon.wait is for a model wrapped in poseidon.Parallel, got a {type(model).__name__}")
    model.wait()


def _device_of(module: nn.Module, device_ids: Sequence[int | torch.device] | None) -> torch.device:
    if isinstance(module, Parallel):
        raise UsageError("this model is wrapped in Parallel already")
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not learning:
        raise UsageError("no parameter of the model learns (requires_grad), so there is nothing to exchange")
    devices = {parameter.device for parameter in learning}
    dtypes = {(p.element_size(), p.dtype) for p in learning}
    if len(devices) > 1:
        raise UsageError(f"all parameters of a worker's model must be on one device, got {sorted(map(str, devices))}")
    if len({size for size, _ in dtypes}) < len(dtypes):
        raise UsageError(f"parameters of equal width must have one dtype, got {sorted(str(d) for _, d in dtypes)}")
    device = devices.pop()
    if device_ids is not None:
        wanted = [
            torch.device("cuda", entry) if isinstance(entry, int) else torch.device(entry) for entry in device_ids
        ]
        if wanted != [device]:
            raise UsageError(
                f"device_ids must name the one device the model is on, {device}, got {list(device_ids)}: move the "
                "model there first, or leave device_ids out"
            )
    return device


def _part(replica: Replica | None, transport: Transport | None, hook: Any) -> None:
    """What a Parallel leaves behind: threads and connections. Exchanges under way are finished, if they can be."""
    hook.remove()
    if replica is not None:
        with contextlib.suppress(Exception):  # whoever could be told has been
            replica.wait()
        replica.close()
    if transport is not None:
        transport.close()
