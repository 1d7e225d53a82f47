"""Learning-rate policies: the rate of an iteration, from the solver's settings alone.

    fixed       base_lr
    step        base_lr · gamma ^ s             s = ⌊iteration / stepsize⌋
    exp         base_lr · gamma ^ iteration
    inv         base_lr · (1 + gamma · iteration) ^ -power
    multistep   base_lr · gamma ^ s             s grows by one when the iteration has reached stepvalue[s]
    poly        base_lr · (1 - iteration / max_iter) ^ power
    sigmoid     base_lr / (1 + exp(-gamma · (iteration - stepsize)))

Caffe keeps s in the solver (`current_step`) and in its snapshots, so it goes in and comes out here. In multistep s
grows at most once per iteration, also when several stepvalues are passed at once. Values are rounded to float32 where
Caffe does, so that rates print alike; a poly beyond max_iter is nan, as there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from poseidon.errors import SolverError
from poseidon.spec import caffe_pb2, nearest


@dataclass(frozen=True, slots=True)
class Rate:
    """The learning rate of one iteration, and the step the policy is at."""

    value: float
    current_step: int


Policy = Callable[[caffe_pb2.SolverParameter, int, int], Rate]


def rate_of(param: caffe_pb2.SolverParameter, iteration: int, current_step: int = 0) -> Rate:
    """The rate of `iteration`, where `current_step` is what the iteration before left."""
    policy = POLICIES.get(param.lr_policy)
    if policy is None:
        raise SolverError(
            f"lr_policy is {param.lr_policy!r}{nearest(param.lr_policy, POLICIES)}, expected one of: "
            f"{', '.join(POLICIES)}"
        )
    with np.errstate(all="ignore"):
        rate = policy(param, iteration, current_step)
    return Rate(float(np.float32(rate.value)), rate.current_step)


def check_policy(param: caffe_pb2.SolverParameter) -> None:
    """Raises for settings that would fail in the first iteration."""
    rate_of(param, 0)


def fixed(param: caffe_pb2.SolverParameter, iteration: int, current_step: int) -> Rate:
    return Rate(param.base_lr, current_step)


def step(param: caffe_pb2.SolverParameter, iteration: int, current_step: int) -> Rate:
    current_step = iteration // _stepsize(param)
    return Rate(param.base_lr * np.float64(_gamma(param)) ** current_step, current_step)


def exp(param: caffe_pb2.SolverParameter, iteration: int, current_step: int) -> Rate:
    return Rate(param.base_lr * np.float64(_gamma(param)) ** iteration, current_step)


def inv(param: caffe_pb2.SolverParameter, iteration: int, current_step: int) -> Rate:
    base = np.float32(1) + np.float32(_gamma(param)) * np.float32(iteration)
    return Rate(param.base_lr * base ** np.float32(-param.power), current_step)


def multistep(param: caffe_pb2.SolverParameter, iteration: int, current_step: int) -> Rate:
    if current_step < len(param.stepvalue) and iteration >= param.stepvalue[current_step]:
        current_step += 1
    return Rate(param.base_lr * np.float64(_gamma(param)) ** current_step, current_step)


def poly(param: caffe_pb2.SolverParameter, iteration: int, current_step: int) -> Rate:
    left = np.float32(1) - np.float32(iteration) / np.float32(param.max_iter)
    return Rate(param.base_lr * left ** np.float32(param.power), current_step)


def sigmoid(param: caffe_pb2.SolverParameter, iteration: int, current_step: int) -> Rate:
    distance = np.float32(iteration) - np.float32(_stepsize(param))
    return Rate(param.base_lr / (1 + np.exp(-np.float32(_gamma(param)) * distance)), current_step)


POLICIES: dict[str, Policy] = {policy.__name__: policy for policy in (fixed, step, exp, inv, multistep, poly, sigmoid)}


def _stepsize(param: caffe_pb2.SolverParameter) -> int:
    if param.stepsize <= 0:
        raise SolverError(f"lr_policy {param.lr_policy!r} needs a stepsize of at least 1, got {param.stepsize}")
    return param.stepsize


def _gamma(param: caffe_pb2.SolverParameter) -> float:
    if param.gamma < 0:
        raise SolverError(f"lr_policy {param.lr_policy!r} needs a gamma of at least 0, got {param.gamma:g}")
    return param.gamma
