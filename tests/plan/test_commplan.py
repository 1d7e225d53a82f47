"""Plans as JSON, as text for people, and plans that cannot be."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poseidon.errors import PlanError
from poseidon.plan import (
    Cluster,
    CommPlan,
    FactorShape,
    LayerProfile,
    NetProfile,
    ParamProfile,
    PlanRequest,
    Scheme,
    Send,
    check_fits,
    make_plan,
    plan_table,
)
from tests.plan.known_nets import ALEXNET, profile_of, resnet50, vgg19
from tests.plan.strategies import clusters, profiles

NET = profile_of(ALEXNET, 32, 0.5)
PLAN = make_plan(NET, Cluster((1, 2), 1e9, flops=6e12))


def changed(**fields) -> CommPlan:
    return dataclasses.replace(PLAN, **fields)


class TestJson:
    @settings(max_examples=60, deadline=None)
    @given(profiles(), clusters(), st.sampled_from(["fp32", "bf16"]))
    def test_round_trip(self, profile, cluster, wire):
        plan = make_plan(profile, cluster, PlanRequest(wire=wire, fuse_bytes=(0, 1e6), chunk_bytes=(2e5, 1e6)))
        again = CommPlan.from_json(plan.to_json())
        assert again == plan
        assert again.to_json() == plan.to_json()
        assert again.digest() == plan.digest()
        assert NetProfile.from_json(profile.to_json()) == profile

    def test_is_canonical(self):
        text = PLAN.to_json()
        assert json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")) == text
        shuffled = json.dumps(dict(reversed(json.loads(text).items())), indent=2)
        assert CommPlan.from_json(shuffled).digest() == PLAN.digest()

    def test_digest_is_sha256_and_tells_plans_apart(self):
        assert len(bytes.fromhex(PLAN.digest())) == 32
        assert changed(in_flight=5).digest() != PLAN.digest()
        assert changed(iteration_s=PLAN.iteration_s + 1e-15).digest() != PLAN.digest()

    def test_whole_numbers_where_floats_belong(self):
        assert Cluster((1, 1), 10**9).to_json() == Cluster((1, 1), 1e9).to_json()
        assert (
            Cluster.from_json(Cluster((1, 1), 10**9).to_json().replace("1000000000.0", "1000000000")).bandwidth_bps
            == 1e9
        )

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda d: d.pop("order"), "CommPlan: expected the fields .*; missing: order; unknown: none"),
            (lambda d: d.update(extra=1), "missing: none; unknown: extra"),
            (lambda d: d.update(order=3), "CommPlan.order: expected a list, got 3"),
            (lambda d: d.update(barrier=1), "CommPlan.barrier: expected a value of type bool, got 1"),
            (lambda d: d.update(in_flight=True), "CommPlan.in_flight: expected a value of type int, got true"),
            (
                lambda d: d.update(iteration_s="fast"),
                'CommPlan.iteration_s: expected a value of type float, got "fast"',
            ),
            (lambda d: d.update(iteration_s=10**400), "CommPlan.iteration_s: expected a value of type float"),
            (lambda d: d.update(cluster=[]), r"CommPlan.cluster: expected an object, got \[\]"),
            (
                lambda d: d["units"][1].update(scheme="bush"),
                r'units\[1\].scheme: expected one of local, .*, got "bush"',
            ),
            (lambda d: d["units"][0].update(scheme=["ring"]), r"units\[0\].scheme: expected one of local"),
            (lambda d: d["order"][0].update(start="0"), r"order\[0\].start: expected a value of type int"),
            (lambda d: d["cluster"].update(flops=-1), "flops must be above 0"),
            (lambda d: d.update(format=99), "format 99, this version reads 1: make a new plan"),
        ],
    )
    def test_damaged(self, change, message):
        data = json.loads(PLAN.to_json())
        change(data)
        with pytest.raises(PlanError, match=message):
            CommPlan.from_json(json.dumps(data))

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", "NaN", "[" * 100_000, '{"a":' * 50_000])
    def test_not_a_plan_at_all(self, text):
        with pytest.raises(PlanError, match="CommPlan: expected"):
            CommPlan.from_json(text)

    def test_not_a_number(self):
        text = PLAN.to_json().replace(f'"iteration_s":{PLAN.iteration_s!r}', '"iteration_s":NaN')
        with pytest.raises(PlanError, match="iteration_s: expected a finite number"):
            CommPlan.from_json(text)


class TestPlansThatCannotBe:
    def test_send_missing(self):
        with pytest.raises(PlanError, match=r"has \d+ elements, but the order sends 0"):
            changed(order=PLAN.order[1:])

    def test_send_twice(self):
        with pytest.raises(PlanError, match=r"must cover its .* elements once"):
            changed(order=(*PLAN.order, PLAN.order[0]))

    def test_gap(self):
        first = PLAN.order[0]
        with pytest.raises(PlanError, match="must cover its"):
            changed(order=(Send(first.unit, first.start + 1, first.stop), *PLAN.order[1:]))

    def test_beyond_the_end(self):
        last = PLAN.order[-1]
        with pytest.raises(PlanError, match="must cover its"):
            changed(order=(*PLAN.order[:-1], Send(last.unit, last.start, last.stop + 1)))

    def test_no_such_unit(self):
        for unit in (-1, len(PLAN.units)):
            with pytest.raises(PlanError, match="no unit that travels"):
                changed(order=(*PLAN.order, Send(unit, 0, 1)))

    def test_rows_in_two_pieces(self):
        unit = PLAN.unit_of()["fc6/0"]
        unit = dataclasses.replace(unit, scheme=Scheme.ROWS)
        halves = (Send(unit.index, 0, 5), Send(unit.index, 5, unit.num_elems))
        others = tuple(send for send in PLAN.order if send.unit != unit.index)
        units = tuple(unit if other.index == unit.index else other for other in PLAN.units)
        with pytest.raises(PlanError, match="in order and in one piece"):
            changed(units=units, order=others + halves)

    def test_parameter_in_two_units(self):
        unit = dataclasses.replace(PLAN.units[0], index=len(PLAN.units))
        with pytest.raises(PlanError, match="a parameter is in one unit only"):
            changed(units=(*PLAN.units, unit))

    def test_numbers_out_of_order(self):
        with pytest.raises(PlanError, match="numbered from 0 in order"):
            changed(units=PLAN.units[::-1])

    def test_elements_that_do_not_fit_the_shapes(self):
        unit = dataclasses.replace(PLAN.units[0], num_elems=7)
        with pytest.raises(PlanError, match=r"says 7 elements, its shapes have \d+"):
            changed(units=(unit, *PLAN.units[1:]))

    def test_local_before_others(self):
        unit = dataclasses.replace(PLAN.units[0], scheme=Scheme.LOCAL)
        with pytest.raises(PlanError, match="what stays local is one unit, the last"):
            changed(units=(unit, *PLAN.units[1:]))

    def test_empty_unit(self):
        unit = dataclasses.replace(PLAN.units[0], params=(), shapes=())
        with pytest.raises(PlanError, match="needs parameters and a shape for each"):
            changed(units=(unit, *PLAN.units[1:]))

    @pytest.mark.parametrize(
        ("fields", "message"), [({"wire": "int8"}, "wire is one of"), ({"in_flight": 0}, "at least 1")]
    )
    def test_options(self, fields, message):
        with pytest.raises(PlanError, match=message):
            changed(**fields)


class TestFitting:
    def test_its_own_net(self):
        check_fits(PLAN, NET)

    def test_other_batch_is_no_matter(self):
        check_fits(PLAN, profile_of(ALEXNET, 64, 0.5))

    def test_other_parameters(self):
        with pytest.raises(
            PlanError, match=r"another net; in the net only: conv1_1/0, .* and .* more; in the plan only: conv1/0"
        ):
            check_fits(PLAN, profile_of(vgg19(1000), 32, 0.5))

    def with_param(self, name: str, **fields) -> NetProfile:
        params = tuple(dataclasses.replace(p, **fields) if p.name == name else p for p in NET.params)
        return dataclasses.replace(NET, params=params)

    def test_other_shape(self):
        with pytest.raises(
            PlanError, match=r"parameter 'conv1/1': it expects shape \(96,\), the net has shape \(95,\)"
        ):
            check_fits(PLAN, self.with_param("conv1/1", shape=(95,)))

    def test_frozen_since(self):
        with pytest.raises(PlanError, match=r"the net has shape .*, staying local"):
            check_fits(PLAN, self.with_param("conv1/0", learns=False))

    def test_no_factors_any_more(self):
        params = tuple(dataclasses.replace(p, factors=None, rides_with=None) for p in NET.params)
        with pytest.raises(
            PlanError, match="the plan sends fc6/0, fc6/1 by FACTORS, but the net has no such structure"
        ):
            check_fits(PLAN, dataclasses.replace(NET, params=params))

    def test_clipping(self):
        with pytest.raises(PlanError, match="the solver has clip_gradients, the plan has not"):
            check_fits(PLAN, dataclasses.replace(NET, needs_all_gradients=True))
        with pytest.raises(PlanError, match="the plan has clip_gradients, the solver has not"):
            check_fits(changed(barrier=True), NET)

    def test_width_of_fused_elements(self):
        fused = make_plan(NET, PLAN.cluster, PlanRequest(scheme=Scheme.RING, fuse_bytes=(1e12,)))
        assert len(fused.units) == 1
        with pytest.raises(PlanError, match="elements differ in size"):
            check_fits(fused, self.with_param("conv1/0", elem_bytes=2))

    def test_cut_inside_of_a_slice(self):
        params = (ParamProfile("w", (4, 6), factors=FactorShape(2, 4, 6)),)
        net = NetProfile((LayerProfile("fc", 0.1, 0.1, ("w",)),), params)
        plan = make_plan(net, Cluster((1, 1), 1e9), PlanRequest(scheme=Scheme.FACTOR_SERVER))
        check_fits(dataclasses.replace(plan, order=(Send(0, 0, 8), Send(0, 8, 24))), net)
        with pytest.raises(PlanError, match="the plan cuts w inside of a slice of 4 elements"):
            check_fits(dataclasses.replace(plan, order=(Send(0, 0, 6), Send(0, 6, 24))), net)

    def test_one_worker(self):
        alone = make_plan(NET, Cluster((1,), 1e9))
        check_fits(alone, NET)


class TestTable:
    @pytest.mark.parametrize("layers", [ALEXNET, resnet50(), vgg19(21841)], ids=["AlexNet", "ResNet-50", "VGG-19"])
    def test_fits_100_columns_and_has_all_units(self, layers):
        plan = make_plan(profile_of(layers, 32, 0.5), Cluster((1,) * 8, 1e9, flops=6e12))
        lines = plan.table().splitlines()
        assert max(map(len, lines)) <= 100
        for unit in plan.units:
            row = next(line for line in lines if line.startswith(unit.params[0]))
            assert f" {unit.scheme.name} " in row

    def test_long_names_are_shortened(self):
        name = "a_layer_whose_name_takes_more_room_than_any_table_should_give_it"
        factors = FactorShape(64, 100_000, 100_000)
        params = (ParamProfile(f"{name}/0", (100_000, 100_000), factors=factors), ParamProfile(f"{name}/1", (10_000,)))
        net = NetProfile((LayerProfile(name, 0.1, 0.1, (f"{name}/0", f"{name}/1")),), params)
        request = PlanRequest(scheme=Scheme.FACTOR_SERVER, chunk_bytes=(1e9,))
        text = make_plan(net, Cluster((1,) * 8, 1e8), request).table()
        assert "FACTOR_SERVER" in text
        assert max(map(len, text.splitlines())) <= 100
        assert "a_layer_whose_name" in text

    def test_figures(self):
        """Two nodes: an all-reduce sends what the unit has, 40 MB; 1 Gbit/s takes 320 ms for them."""
        net = NetProfile(
            (LayerProfile("conv", 0.1, 0.2, ("conv/0",)),), (ParamProfile("conv/0", (1000, 10_000)),), True
        )
        plan = make_plan(net, Cluster((1, 1), 1e9, latency_s=0.0, send_s=0.0), PlanRequest(scheme=Scheme.RING))
        (row,) = plan_table(plan).rows
        assert row == ("conv/0", "1000 x 10000", "40.0", "-", "RING", "40.0", "320.00")
        text = plan.table()
        assert "iteration 620.0 ms predicted = 300.0 ms compute + 320.0 ms rebuilding, updating and waiting" in text
        assert "barrier   every update waits for all gradients (clip_gradients)" in text
        assert "network   40.0 MB sent per node and iteration in 1 sends" in text

    def test_factors_and_why(self):
        text = PLAN.table()
        assert "why       fc6/0: an iteration takes +" in text
        assert PLAN.table() == CommPlan.from_json(PLAN.to_json()).table()
