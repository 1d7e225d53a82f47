"""Learning-rate policies against Caffe's printed rates and against their formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

from poseidon.errors import SolverError
from poseidon.solver.policies import POLICIES, Rate, check_policy, rate_of
from poseidon.spec import caffe_pb2, read_solver
from tests.solver.golden import SOLVERS, record_of


def settings(policy: str, **fields) -> caffe_pb2.SolverParameter:
    return caffe_pb2.SolverParameter(lr_policy=policy, base_lr=0.25, **fields)


@pytest.mark.parametrize("folder", SOLVERS, ids=lambda folder: folder.name)
def test_rates_print_as_in_caffe(folder):
    param = read_solver(folder / "solver.prototxt")
    current_step = 0
    for iteration, printed in enumerate(record_of(folder)["lr"]):
        rate = rate_of(param, iteration, current_step)
        current_step = rate.current_step
        assert float(f"{rate.value:g}") == pytest.approx(float(printed), rel=1e-7)


FORMULAS = {
    "fixed": ({}, lambda i: 0.25),
    "step": ({"gamma": 0.5, "stepsize": 30}, lambda i: 0.25 * 0.5 ** (i // 30)),
    "exp": ({"gamma": 0.75}, lambda i: 0.25 * 0.75**i),
    "inv": ({"gamma": 0.125, "power": 0.75}, lambda i: 0.25 * (1 + 0.125 * i) ** -0.75),
    "poly": ({"power": 2.5, "max_iter": 400}, lambda i: 0.25 * (1 - i / 400) ** 2.5),
    "sigmoid": ({"gamma": 0.125, "stepsize": 40}, lambda i: 0.25 / (1 + math.exp(-0.125 * (i - 40)))),
    "multistep": ({"gamma": 0.5, "stepvalue": [3, 100]}, lambda i: 0.25 * 0.5 ** ((i >= 3) + (i >= 100))),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_formula(policy):
    fields, formula = FORMULAS[policy]
    param = settings(policy, **fields)
    current_step = 0
    for iteration in range(320):
        rate = rate_of(param, iteration, current_step)
        current_step = rate.current_step
        assert rate.value == pytest.approx(formula(iteration), rel=2e-6)


def test_multistep_passes_one_stepvalue_per_iteration():
    param = settings("multistep", gamma=0.5, stepvalue=[2, 3, 4])
    assert rate_of(param, 10, 0) == Rate(0.125, 1)
    assert rate_of(param, 11, 1) == Rate(0.0625, 2)
    assert rate_of(param, 12, 3) == Rate(0.03125, 3)


def test_step_is_kept_where_the_policy_has_none():
    assert rate_of(settings("fixed"), 9, current_step=4).current_step == 4


def test_extremes_are_numbers_as_in_c():
    assert math.isnan(rate_of(settings("poly", power=0.5, max_iter=10), 11).value)
    assert rate_of(settings("sigmoid", gamma=100, stepsize=1000), 0).value == 0
    assert rate_of(settings("exp", gamma=10), 10**6).value == np.inf


@pytest.mark.parametrize(
    ("param", "message"),
    [
        (settings("stp"), r"lr_policy is 'stp' \(did you mean 'step'\?\), expected one of: fixed, step, exp, inv"),
        (caffe_pb2.SolverParameter(base_lr=1), r"lr_policy is ''.*expected one of"),
        (settings("step", gamma=0.1), "needs a stepsize of at least 1, got 0"),
        (settings("sigmoid", gamma=0.1), "needs a stepsize of at least 1, got 0"),
        (settings("inv", gamma=-2), "'inv' needs a gamma of at least 0, got -2"),
    ],
)
def test_wrong_settings(param, message):
    with pytest.raises(SolverError, match=message):
        check_policy(param)
