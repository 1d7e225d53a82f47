"""Profiles that make no sense are refused where they are made."""

from __future__ import annotations

import math

import pytest

from poseidon.errors import PlanError
from poseidon.plan import FactorShape, LayerProfile, NetProfile, ParamProfile, RowShape


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FactorShape(0, 1, 1), "factors: rows must be at least 1, got 0"),
        (lambda: RowShape(1, 1, 0), "rows: total must be at least 1, got 0"),
        (lambda: ParamProfile("w", (3, 0)), r"'w' must have extents of at least 1, got shape \(3, 0\)"),
        (lambda: ParamProfile("w", (3,), 0), "parameter 'w': elem_bytes must be at least 1"),
        (
            lambda: ParamProfile("w", (3, 4), factors=FactorShape(1, 3, 5)),
            "has 12 elements, but its factors describe 15",
        ),
        (lambda: ParamProfile("w", (3, 4), rows=RowShape(1, 4, 4)), "has 12 elements, but its rows describe 16"),
        (lambda: LayerProfile("a", -1.0, 0.0), "layer 'a': forward_s must be seconds, 0 or more, got -1"),
        (lambda: LayerProfile("a", 0.0, math.nan), "layer 'a': backward_s must be seconds, 0 or more, got nan"),
        (lambda: NetProfile((), (), between_s=math.inf), "between_s must be seconds"),
    ],
)
def test_parts(make, message):
    with pytest.raises(PlanError, match=message):
        make()


def net(*params: ParamProfile, read: tuple[str, ...] = ("w", "b")) -> NetProfile:
    return NetProfile((LayerProfile("fc", 0.1, 0.2, read),), params)


WEIGHT = ParamProfile("w", (3, 4), factors=FactorShape(1, 3, 4))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([WEIGHT], "read but not described: b; described but not read: none"),
        (
            [WEIGHT, ParamProfile("b", (3,)), ParamProfile("c", (3,))],
            "read but not described: none; described but not read: c",
        ),
        ([WEIGHT, WEIGHT, ParamProfile("b", (3,))], "described once, got several descriptions of w"),
        (
            [WEIGHT, ParamProfile("b", (3,), rides_with="x")],
            "'b' rides with 'x', which must be a parameter with factors",
        ),
        ([ParamProfile("w", (3, 4)), ParamProfile("b", (3,), rides_with="w")], "must be a parameter with factors"),
        (
            [WEIGHT, ParamProfile("b", (4,), rides_with="w")],
            "expected its element size and 3 elements, got 4 bytes and 4",
        ),
        (
            [WEIGHT, ParamProfile("b", (3,), 8, rides_with="w")],
            "expected its element size and 3 elements, got 8 bytes and 3",
        ),
    ],
)
def test_nets(params, message):
    with pytest.raises(PlanError, match=message):
        net(*params)


def test_compute_seconds():
    layers = (LayerProfile("a", 0.1, 0.2), LayerProfile("b", 0.3, 0.4))
    assert NetProfile(layers, (), between_s=2.0).compute_s == pytest.approx(3.0)


def test_scalar_parameter_has_one_element():
    assert ParamProfile("s", ()).num_elems == 1
