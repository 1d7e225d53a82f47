"""Whether a plan is one for a net: a plan that was saved may meet a net that has changed since."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from poseidon.errors import PlanError
from poseidon.plan.commplan import CommPlan, Scheme, Unit, row_grains
from poseidon.plan.profile import FactorShape, NetProfile, ParamProfile


@dataclass(frozen=True, slots=True)
class _Held:
    """What plan and net must agree on about a parameter."""

    shape: tuple[int, ...]
    is_local: bool

    def __str__(self) -> str:
        return f"shape {self.shape}{', staying local' if self.is_local else ''}"


def check_fits(plan: CommPlan, profile: NetProfile) -> None:
    """Raises unless plan and net have the same parameters, with the structure the plan makes use of."""
    _check_params(plan, profile)
    params = {param.name: param for param in profile.params}
    for unit in plan.units:
        _check_structure(plan, unit, [params[name] for name in unit.params])
    if plan.barrier != profile.needs_all_gradients:
        with_clipping, without = ("plan", "solver") if plan.barrier else ("solver", "plan")
        raise PlanError(f"the {with_clipping} has clip_gradients, the {without} has not: make a new plan")


def _check_params(plan: CommPlan, profile: NetProfile) -> None:
    planned = {
        name: _Held(shape, unit.scheme is Scheme.LOCAL)
        for unit in plan.units
        for name, shape in zip(unit.params, unit.shapes, strict=True)
    }
    alone = plan.cluster.num_workers == 1
    there = {param.name: _Held(param.shape, alone or not param.learns) for param in profile.params}
    if planned.keys() != there.keys():
        raise PlanError(
            f"the plan is for another net; in the net only: {_some(there.keys() - planned.keys())}; "
            f"in the plan only: {_some(planned.keys() - there.keys())}; make a new plan"
        )
    for name, held in there.items():
        if planned[name] != held:
            raise PlanError(
                f"the plan does not fit parameter {name!r}: it expects {planned[name]}, the net has {held}; "
                "make a new plan"
            )


def _check_structure(plan: CommPlan, unit: Unit, params: list[ParamProfile]) -> None:
    first, *others = params
    weights = [param for param in params if param.factors is not None]
    has_rows = first.rows is not None and not others
    needed = {
        Scheme.FACTORS: _are_factors(params),
        Scheme.FACTOR_SERVER: _are_factors(params) and len(weights) == 1,
        Scheme.ROWS: has_rows,
        Scheme.POWER_SGD: first.power is not None,
    }
    if not needed.get(unit.scheme, True):
        raise PlanError(
            f"the plan sends {', '.join(unit.params)} by {unit.scheme.name}, but the net has no such structure there: "
            "make a new plan"
        )
    if unit.scheme.is_dense and len({param.elem_bytes for param in params}) > 1:
        raise PlanError(f"the plan fuses {', '.join(unit.params)}, whose elements differ in size: make a new plan")
    if first.factors is not None and not unit.scheme.is_dense:
        what, grain_elems = _grain(unit, first.factors)
        if any(send.unit == unit.index and send.start % grain_elems for send in plan.order):
            raise PlanError(f"the plan cuts {first.name} inside of a {what} of {grain_elems} elements: make a new plan")


def _are_factors(params: list[ParamProfile]) -> bool:
    """Whether these are weights with as many rows of factors, each followed by what rides on it."""
    weight, num_rows = "", set()
    for param in params:
        if param.factors is not None:
            weight = param.name
            num_rows.add(param.factors.rows)
        elif param.rides_with is None or param.rides_with != weight:
            return False
    return len(num_rows) == 1


def _grain(unit: Unit, factors: FactorShape) -> tuple[str, int]:
    """What a unit of factors is not cut inside of."""
    if unit.scheme is Scheme.FACTORS:
        return "row", row_grains(unit.num_elems, factors.rows)[1]
    return "slice", min(factors.outputs, factors.inputs)


def _some(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return ", ".join(found[:5]) + more if found else "none"
