"""Jobs of several workers in one process, and the small nets they train. The oracle is always one worker with the
P-fold batch: the same solver with another batch_size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from poseidon.plan import STALE_SCHEMES, Cluster, CommPlan, PlanRequest, Scheme, make_plan
from poseidon.run.distribute import DistributeOptions, Distribution, distribute
from poseidon.run.layer_times import estimated_times
from poseidon.run.profile import profile_net
from poseidon.solver import NetOptions, Solver
from poseidon.spec import caffe_pb2, parse_net, parse_solver
from poseidon.transport import Transport
from poseidon.transport.inproc import run_workers
from tests.data.make import datum, write_lmdb
from tests.solver.small import Recorder

PROMPT = DistributeOptions(agree_s=0)  # requests are looked at after every iteration


@dataclass(frozen=True, slots=True)
class Worker:
    """What a test does something with, on each worker."""

    solver: Solver
    heard: Recorder
    distribution: Distribution
    transport: Transport


def plan_for(
    solver: Solver, size: int, scheme: Scheme | None = None, wire: str = "fp32", among: Sequence[Scheme] = tuple(Scheme)
) -> CommPlan:
    param = solver.param
    profile = profile_net(
        solver.net,
        estimated_times(solver.net, 1e9),
        iter_size=param.iter_size,
        needs_all_gradients=param.clip_gradients >= 0,
    )
    request = PlanRequest(scheme=scheme, wire=wire, among=tuple(among))
    return make_plan(profile, Cluster((1,) * size, bandwidth_bps=1e9), request)


def built(param: caffe_pb2.SolverParameter, dtype: torch.dtype = torch.float64) -> tuple[Solver, Recorder]:
    heard = Recorder()
    return Solver(param, options=NetOptions(dtype=dtype), listeners=[heard]), heard


def in_team(
    size: int,
    param: caffe_pb2.SolverParameter | Callable[[int], caffe_pb2.SolverParameter],
    act: Callable[[Worker], Any],
    *,
    options: DistributeOptions = PROMPT,
    scheme: Scheme | None = None,
    wire: str = "fp32",
) -> list[Any]:
    """What `act` returns on each of `size` workers; `param` may be one for each rank."""

    def work(transport: Transport) -> Any:
        solver, heard = built(param(transport.rank) if callable(param) else param)
        among = tuple(Scheme) if options.staleness is None else STALE_SCHEMES
        with distribute(solver, transport, plan_for(solver, size, scheme, wire, among), options) as distribution:
            return act(Worker(solver, heard, distribution, transport))

    return run_workers(size, work, timeout_s=60)


def trained(
    size: int, param: caffe_pb2.SolverParameter, num_iterations: int, **options: Any
) -> list[list[torch.Tensor]]:
    """Every worker's parameters after so many iterations."""

    def act(worker: Worker) -> list[torch.Tensor]:
        worker.solver.step(num_iterations)
        return parameters(worker.solver)

    return in_team(size, param, act, **options)


def parameters(solver: Solver) -> list[torch.Tensor]:
    """Copies of all parameters, when nothing is on its way any more."""
    solver.updates.drain()
    return [entry.value.detach().clone() for entry in solver.net.learnable]


def assert_alike(by_rank: list[list[torch.Tensor]]) -> None:
    """The same bits on all workers."""
    for others in by_rank[1:]:
        assert all(torch.equal(a, b) for a, b in zip(by_rank[0], others, strict=True))


def assert_close(found: list[torch.Tensor], expected: list[torch.Tensor], rtol: float = 1e-8) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=1e-12)


# -- settings and nets ------------------------------------------------------------------------------------------------
def solver_param(net: str, text: str = "") -> caffe_pb2.SolverParameter:
    """SGD with momentum; fields in `text` are added, or override."""
    param = parse_solver(
        'base_lr: 0.05 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.001 max_iter: 10 random_seed: 3 '
        "snapshot_after_train: false"
    )
    param.MergeFrom(parse_solver(text))
    param.net_param.CopyFrom(parse_net(net).net)
    return param


def write_pictures(path: Path, count: int = 26, num_classes: int = 4) -> str:
    """An LMDB of 2 × 6 × 6 pictures; every fifth has the label `num_classes`, which losses may ignore."""
    random = np.random.RandomState(7)
    pixels = random.randint(0, 256, (count, 2, 6, 6)).astype(np.uint8)
    labels = [num_classes if i % 5 == 4 else int(random.randint(num_classes)) for i in range(count)]
    return write_lmdb(path, [datum(p, label) for p, label in zip(pixels, labels, strict=True)])


def picture_net(
    source: str, batch: int, *, middle: str = "", loss: str = "", further: str = "", test_batch: int = 3
) -> str:
    """Random crops and mirrors → conv → [middle] → relu → dropout → fc → softmax loss; accuracy in tests."""
    transform = "transform_param { crop_size: 4 mirror: true scale: 0.01 }"
    return f"""
        name: "pictures"
        layer {{ name: "data" type: "Data" top: "data" top: "label" include {{ phase: TRAIN }} {transform}
                 data_param {{ source: "{source}" batch_size: {batch} backend: LMDB }} }}
        layer {{ name: "data" type: "Data" top: "data" top: "label" include {{ phase: TEST }} {transform}
                 data_param {{ source: "{source}" batch_size: {test_batch} backend: LMDB }} }}
        layer {{ name: "conv" type: "Convolution" bottom: "data" top: "h"
                 convolution_param {{ num_output: 4 kernel_size: 3 weight_filler {{ type: "xavier" }} }} }}
        {middle}
        layer {{ name: "relu" type: "ReLU" bottom: "h" top: "h" }}
        layer {{ name: "drop" type: "Dropout" bottom: "h" top: "h" dropout_param {{ dropout_ratio: 0.3 }} }}
        layer {{ name: "fc" type: "InnerProduct" bottom: "h" top: "y"
                 inner_product_param {{ num_output: 5 weight_filler {{ type: "xavier" }} }} }}
        layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "label" top: "loss" {loss} }}
        layer {{ name: "accuracy" type: "Accuracy" bottom: "y" bottom: "label" top: "accuracy"
                 include {{ phase: TEST }} }}
        {further}
    """
