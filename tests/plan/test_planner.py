"""The planner against exhaustive search, and what a user can ask of it."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from poseidon.errors import UsageError
from poseidon.plan import (
    Cluster,
    CommPlan,
    FactorShape,
    LayerProfile,
    NetProfile,
    Order,
    Override,
    ParamProfile,
    PlanRequest,
    RowShape,
    Scheme,
    Send,
    make_plan,
    parse_overrides,
    simulate,
)
from poseidon.plan.commplan import PATTERN_SCHEMES
from poseidon.plan.planner import MOST_IN_FLIGHT, NUM_IN_PAIR, WORTH_SHARING
from poseidon.plan.search import MOST_STEPS
from tests.plan.known_nets import profile_of, resnet50
from tests.plan.strategies import clusters, profiles

FUSE, CHUNK = (0, 1_000_000), (250_000, float("inf"))
SMALL = PlanRequest(fuse_bytes=FUSE, chunk_bytes=CHUNK, in_flight=4, cuts_single=False)
PLAIN = replace(SMALL, among=tuple(scheme for scheme in Scheme if scheme is not Scheme.DOUBLING))


def ways_of(param: ParamProfile, doubles: bool) -> list[Scheme]:
    ways = [Scheme.RING, Scheme.SERVER, *([Scheme.DOUBLING] if doubles else [])]
    ways += [Scheme.FACTORS, Scheme.FACTOR_SERVER] if param.factors else []
    return ways + ([Scheme.ROWS] if param.rows else [])


def exhaustive_s(profile: NetProfile, cluster: Cluster, in_flight: int = 4, *, doubles: bool = False) -> float:
    """The shortest iteration over every scheme of every parameter, every size and both orders."""
    deciding = [param for param in profile.params if param.learns and param.rides_with is None]
    found = []
    for chosen in itertools.product(*(ways_of(param, doubles) for param in deciding)):
        overrides = tuple(Override(param.name, scheme) for param, scheme in zip(deciding, chosen, strict=True))
        for fuse, chunk, order in itertools.product(FUSE, CHUNK, Order):
            sizes = replace(SMALL, fuse_bytes=(fuse,), chunk_bytes=(chunk,), orders=(order,), in_flight=in_flight)
            request = replace(sizes, overrides=overrides)
            found.append(make_plan(profile, cluster, request).iteration_s)
    return min(found)


def small_units(
    rng: random.Random,
    sizes: tuple[int, ...] = (10, 1000, 10_000, 100_000),
    latency_s: float | None = None,
    num_workers: int | None = None,
) -> tuple[NetProfile, Cluster]:
    """Three dense parameters of which some are small, on nodes of one worker: where messages may count."""
    names = ("a", "b", "c")
    params = tuple(ParamProfile(name, (rng.choice(sizes),)) for name in names)
    layers = tuple(LayerProfile(name, rng.random() / 1e3, rng.random() / 500, (name,)) for name in names)
    cluster = Cluster(
        (1,) * (num_workers or rng.choice((2, 3, 4, 8))),
        rng.choice((1e8, 1e9, 1e10)),
        latency_s or rng.choice((1e-5, 1e-4, 1e-3)),
    )
    return NetProfile(layers, params, needs_all_gradients=rng.random() < 0.3), cluster


class TestOptimum:
    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(profiles(max_layers=3), clusters(), st.sampled_from([1, 4]))
    def test_equals_exhaustive_search(self, profile, cluster, in_flight):
        assume(cluster.num_workers > 1)
        found = make_plan(profile, cluster, replace(PLAIN, in_flight=in_flight)).iteration_s
        assert found == pytest.approx(exhaustive_s(profile, cluster, in_flight), rel=1e-9)

    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(profiles(max_layers=3), clusters())
    def test_unless_told_it_decides_how_many_are_on_their_way(self, profile, cluster):
        """As training and `poseidon plan` ask: one at a time where compute hides nearly all, else the same sends with
        two on their way, unless several should be much faster."""
        assume(cluster.num_workers > 1)
        found = make_plan(profile, cluster, replace(PLAIN, in_flight=None))
        alone = make_plan(profile, cluster, replace(PLAIN, in_flight=1))
        alone_s, shared_s = (exhaustive_s(profile, cluster, in_flight) for in_flight in (1, MOST_IN_FLIGHT))
        paired_s = simulate(replace(alone, in_flight=NUM_IN_PAIR), profile).iteration_s
        if alone_s <= profile.compute_s * WORTH_SHARING:
            expected = (1, alone_s)
        elif shared_s * WORTH_SHARING < paired_s:
            expected = (MOST_IN_FLIGHT, shared_s)
        else:
            expected = (NUM_IN_PAIR, paired_s)
            assert (found.units, found.order) == (alone.units, alone.order)
        assert found.in_flight == expected[0]
        assert found.iteration_s == pytest.approx(expected[1], rel=1e-9)

    @pytest.mark.parametrize("in_flight", [1, 4, None])
    @pytest.mark.parametrize("seed", range(6))
    def test_with_doubling_it_is_near_the_best(self, seed, in_flight):
        """Which units double is decided by their sizes, for all at once, and with care: their bytes count twice."""
        profile, cluster = small_units(random.Random(seed))
        found = make_plan(profile, cluster, replace(SMALL, in_flight=in_flight))
        best_s = exhaustive_s(profile, cluster, in_flight or 1, doubles=True)
        assert found.iteration_s <= 1.25 * best_s
        if in_flight is not None:
            assert found.iteration_s >= best_s * (1 - 1e-9)

    def test_doubling_is_chosen_where_it_is_the_best(self):
        profile, cluster = small_units(random.Random(0), sizes=(100, 1000), latency_s=1e-3, num_workers=8)
        found = make_plan(profile, cluster, SMALL)
        assert {unit.scheme for unit in found.units} == {Scheme.DOUBLING}
        assert found.iteration_s == pytest.approx(exhaustive_s(profile, cluster, doubles=True), rel=1e-9)
        assert found.iteration_s < exhaustive_s(profile, cluster)

    def test_several_share_the_link_where_latency_is_all_two_where_bytes_are_and_one_has_it_where_compute_is(self):
        def chosen(num_elems: int, latency_s: float, forward_s: float = 1e-4) -> CommPlan:
            params = tuple(ParamProfile(f"w{i}", (num_elems,)) for i in range(8))
            layers = tuple(LayerProfile(f"l{i}", forward_s, 2 * forward_s, (f"w{i}",)) for i in range(8))
            apart = PlanRequest(fuse_bytes=(0,))
            return make_plan(NetProfile(layers, params), Cluster((1,) * 8, 1e9, latency_s), apart)

        assert chosen(1_000, 1e-3).in_flight == MOST_IN_FLIGHT
        assert chosen(4_000_000, 1e-4).in_flight == NUM_IN_PAIR
        assert chosen(4_000_000, 1e-4, forward_s=0.5).in_flight == 1

    @settings(deadline=None)
    @given(profiles(max_layers=6), clusters())
    def test_doubling_never_makes_it_longer(self, profile, cluster):
        assert make_plan(profile, cluster, SMALL).iteration_s <= make_plan(profile, cluster, PLAIN).iteration_s

    @pytest.mark.parametrize("barrier", [False, True])
    @pytest.mark.parametrize("bandwidth_bps", [1e8, 1e9, 1e10])
    def test_four_units_with_everything_to_choose(self, barrier, bandwidth_bps):
        rng = random.Random(int(bandwidth_bps))
        params, layers = [], []
        for i in range(4):
            m, n = rng.randrange(50, 1500), rng.randrange(50, 1500)
            structure = {"rows": RowShape(m // 3 + 1, n, m)} if i == 0 else {"factors": FactorShape(32, m, n)}
            params.append(ParamProfile(f"w{i}", (m, n), **structure))
            layers.append(LayerProfile(f"l{i}", rng.random() / 50, rng.random() / 25, (f"w{i}",)))
        profile = NetProfile(tuple(layers), tuple(params), barrier)
        cluster = Cluster((2, 1, 3), bandwidth_bps, flops=1e11, update_bps=1e11)
        found = make_plan(profile, cluster, PLAIN).iteration_s
        assert found == pytest.approx(exhaustive_s(profile, cluster), rel=1e-9)

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(profiles(max_layers=4), clusters())
    def test_cutting_single_units_never_makes_it_longer(self, profile, cluster):
        finer = make_plan(profile, cluster, replace(SMALL, cuts_single=True))
        assert finer.iteration_s <= make_plan(profile, cluster, SMALL).iteration_s

    def test_the_unit_that_forward_waits_for_last_is_cut_and_the_others_are_not(self):
        """16 MB a layer on a link of 1 Gbit/s: 14 steps of 2 ms are too dear to cut all units, but the last one's other
        half can be what comes last, with little of the next forward pass behind it."""
        params = tuple(ParamProfile(f"w{i}", (4_000_000,)) for i in range(4))
        layers = tuple(LayerProfile(f"l{i}", 0.05, 0.1, (f"w{i}",)) for i in range(4))
        asked = PlanRequest(scheme=Scheme.RING, fuse_bytes=(0,), chunk_bytes=(1e6, 4e6, math.inf), in_flight=1)
        request = replace(asked, cuts_single=False)
        plain, finer = (
            make_plan(NetProfile(layers, params), Cluster((1,) * 8, 1e9, 2e-3), r) for r in (request, asked)
        )
        assert Counter(send.unit for send in plain.order) == Counter(range(4))
        assert Counter(send.unit for send in finer.order) == Counter([0, 1, 2, 3, 3])
        assert finer.order[-1] == Send(3, 2_000_000, 4_000_000)
        assert finer.iteration_s < plain.iteration_s

    def test_many_units_are_searched_locally_and_not_worse_than_any_one_scheme(self):
        """Ten inner products: 3¹⁰ combinations."""
        rng = random.Random(7)
        params, layers = [], []
        for i in range(10):
            m, n = rng.randrange(100, 3000), rng.randrange(100, 3000)
            params.append(ParamProfile(f"w{i}", (m, n), factors=FactorShape(rng.choice([8, 64, 256]), m, n)))
            layers.append(LayerProfile(f"l{i}", 0.01, 0.02, (f"w{i}",)))
        profile = NetProfile(tuple(layers), tuple(params))
        assert MOST_STEPS < 3**10 * 20
        for bandwidth_bps, flops in itertools.product((1e8, 1e9, 1e10), (1e10, 1e12)):
            cluster = Cluster((1,) * 8, bandwidth_bps, flops=flops)
            best = make_plan(profile, cluster, PlanRequest(in_flight=1))
            for scheme in (Scheme.RING, Scheme.SERVER, Scheme.FACTORS, Scheme.FACTOR_SERVER):
                assert (
                    best.iteration_s
                    <= make_plan(profile, cluster, PlanRequest(scheme=scheme, in_flight=1)).iteration_s + 1e-12
                )

    def test_local_search_finds_what_exhaustive_search_finds(self, monkeypatch):
        profile = profile_of(resnet50()[-12:], 32, 0.9)
        for bandwidth_bps in (1e8, 1e9, 4e9, 1e10):
            cluster = Cluster((1,) * 8, bandwidth_bps, flops=1e12, update_bps=1e11)
            with monkeypatch.context() as patch:
                patch.setattr("poseidon.plan.search.MOST_STEPS", 0)
                local = make_plan(profile, cluster, PlanRequest(in_flight=1))
            whole = make_plan(profile, cluster, PlanRequest(in_flight=1))
            assert local.iteration_s == pytest.approx(whole.iteration_s, rel=1e-6)

    def test_of_equal_times_the_one_with_less_on_the_link(self):
        """Compute hides everything but the first layer's exchange: the second travels by its fewest bytes."""
        params = (ParamProfile("p", (10,)), ParamProfile("w", (2000, 2000), factors=FactorShape(4, 2000, 2000)))
        layers = (LayerProfile("a", 1.0, 2.0, ("p",)), LayerProfile("b", 1.0, 2.0, ("w",)))
        plan = make_plan(NetProfile(layers, params), Cluster((1,) * 4, 1e10))
        assert plan.unit_of()["w"].scheme is Scheme.FACTORS


class TestSameInputSamePlan:
    @settings(deadline=None)
    @given(profiles(), clusters(), st.randoms())
    def test_order_of_parameters_does_not_matter(self, profile, cluster, rng):
        shuffled = list(profile.params)
        rng.shuffle(shuffled)
        other = NetProfile(profile.layers, tuple(shuffled), profile.needs_all_gradients, profile.between_s)
        assert make_plan(profile, cluster, SMALL).digest() == make_plan(other, cluster, SMALL).digest()

    def test_other_processes_with_other_hashes(self):
        """Python hashes strings and enums differently in every process."""
        program = (
            "from tests.plan.known_nets import profile_of, ALEXNET; from poseidon.plan import *;"
            "print(make_plan(profile_of(ALEXNET, 32, 0.5), Cluster((1, 2, 1), 1e9, flops=6e12)).digest())"
        )
        digests = {
            subprocess.run(
                [sys.executable, "-c", program],
                env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for seed in ("1", "2", "77")
        }
        assert len(digests) == 1
        assert len(digests.pop().strip()) == 64

    def test_torch_is_not_needed(self):
        program = "import sys, poseidon.plan; print('torch' in sys.modules, 'numpy' in sys.modules)"
        environment = {"PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == ["False", "False"]


class TestEveryElementOnce:
    @settings(deadline=None)
    @given(profiles(max_layers=6), clusters(), st.sampled_from([None, *PATTERN_SCHEMES["collective"][1:]]))
    def test_sends_cover_every_unit_once_in_order(self, profile, cluster, scheme):
        request = PlanRequest(scheme=scheme, chunk_bytes=(100_000,), fuse_bytes=(0, 300_000))
        plan = make_plan(profile, cluster, request)
        seen: dict[tuple[int, int], int] = {}
        last: dict[int, int] = {}
        for send in plan.order:
            assert send.start == last.get(send.unit, 0)
            last[send.unit] = send.stop
            for position in range(send.start, send.stop, max((send.stop - send.start) // 50, 1)):
                seen[send.unit, position] = seen.get((send.unit, position), 0) + 1
        assert set(seen.values()) <= {1}
        travelling = [unit for unit in plan.units if unit.scheme is not Scheme.LOCAL]
        assert last == {unit.index: unit.num_elems for unit in travelling}
        names = [name for unit in plan.units for name in unit.params]
        assert sorted(names) == sorted(param.name for param in profile.params)

    @settings(deadline=None)
    @given(profiles(max_layers=6), clusters())
    def test_units_hold_what_may_travel_together(self, profile, cluster):
        assume(cluster.num_workers > 1)
        params = {param.name: param for param in profile.params}
        for unit in make_plan(profile, cluster, SMALL).units:
            members = [params[name] for name in unit.params]
            if unit.scheme is Scheme.LOCAL:
                assert not any(param.learns for param in members)
                continue
            assert all(param.learns for param in members)
            assert len({param.elem_bytes for param in members}) == 1
            weights = [param for param in members if param.rides_with is None]
            if unit.scheme is Scheme.FACTORS:
                assert len({param.factors.rows for param in weights}) == 1
                followed = [[param, *(p for p in members if p.rides_with == param.name)] for param in weights]
                assert members == [param for group in followed for param in group]
            elif not unit.scheme.is_dense:
                assert len(weights) == 1


class TestAsking:
    net = profile_of(resnet50()[-4:], 32, 0.1)
    cluster = Cluster((1,) * 4, 1e9)

    def schemes(self, **options) -> dict[str, Scheme]:
        plan = make_plan(self.net, self.cluster, PlanRequest(**options))
        return {name: unit.scheme for name, unit in plan.unit_of().items()}

    @pytest.mark.parametrize("scheme", [Scheme.FACTORS, Scheme.FACTOR_SERVER])
    def test_forced_scheme_goes_to_all_that_can(self, scheme):
        found = self.schemes(scheme=scheme)
        assert found.pop("fc1000/0") is scheme
        assert found.pop("fc1000/1") is scheme
        assert set(found.values()) == {Scheme.RING}

    def test_forced_server_goes_to_all(self):
        assert set(self.schemes(scheme=Scheme.SERVER).values()) == {Scheme.SERVER}

    def test_rows_for_nobody_leaves_all_to_ring(self):
        assert set(self.schemes(scheme=Scheme.ROWS).values()) == {Scheme.RING}

    def test_override_by_layer_by_pattern_and_the_last_wins(self):
        found = self.schemes(
            scheme=Scheme.FACTORS, overrides=parse_overrides("res5c*=server, fc1000=ring,fc1*/1=server")
        )
        assert found["res5c_2a/0"] is Scheme.SERVER
        assert found["fc1000/0"] is Scheme.SERVER  # the bias rides on it: one decision

    def test_override_that_matches_nothing(self):
        with pytest.raises(UsageError, match=r"no parameter that learns matches 'fc9'; parameters: .*fc1000/0"):
            self.schemes(overrides=parse_overrides("fc9=ring"))

    def test_override_that_cannot_be(self):
        with pytest.raises(
            UsageError, match=r"res5c_2a/0 cannot travel by factors, as 'res.*' asks; it can by ring, doubling, server"
        ):
            self.schemes(overrides=parse_overrides("res*=factors"))

    @pytest.mark.parametrize("text", ["fc6", "=ring", "fc6=ring,", "fc6=rang"])
    def test_overrides_that_are_none(self, text):
        with pytest.raises(UsageError, match=r"NAME=SCHEME|a scheme is one of local, ring"):
            parse_overrides(text)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"scheme": Scheme.LOCAL}, "what learns cannot stay local"),
            ({"overrides": (Override("x", Scheme.LOCAL),)}, "what learns cannot stay local"),
            ({"wire": "int8"}, "one of fp32, bf16, fp16, got 'int8'"),
            ({"in_flight": 0}, "at least 1 send"),
            ({"orders": ()}, "at least one candidate"),
            ({"chunk_bytes": (0,)}, "sizes must be above 0"),
        ],
    )
    def test_requests_that_make_no_sense(self, options, message):
        with pytest.raises(UsageError, match=message):
            PlanRequest(**options)

    def test_half_the_width_sends_half_the_dense_bytes(self):
        for wire in ("bf16", "fp16"):
            half = make_plan(self.net, self.cluster, PlanRequest(wire=wire, scheme=Scheme.RING))
            full = make_plan(self.net, self.cluster, PlanRequest(scheme=Scheme.RING))
            assert half.bytes_sent == pytest.approx(full.bytes_sent / 2, abs=len(half.units) + len(full.units))
            assert half.wire == wire

    def test_alternatives_are_told(self):
        plan = make_plan(self.net, self.cluster)
        assert "ms by RING" in plan.unit_of()["fc1000/0"].reason
        forced = make_plan(self.net, self.cluster, PlanRequest(scheme=Scheme.RING))
        assert forced.unit_of()["fc1000/0"].reason == "asked for"


class TestOddNets:
    def test_one_worker_exchanges_nothing(self):
        plan = make_plan(profile_of(resnet50(), 32, 0.9), Cluster((1,), 1e9))
        assert plan.order == ()
        assert [unit.scheme for unit in plan.units] == [Scheme.LOCAL]
        assert plan.iteration_s == pytest.approx(0.9)

    @pytest.mark.parametrize("barrier", [False, True])
    def test_nothing_that_learns(self, barrier):
        profile = NetProfile(
            (LayerProfile("a", 0.1, 0.2, ("s",)), LayerProfile("b", 0.1, 0.2)),
            (ParamProfile("s", (3,), learns=False),),
            barrier,
        )
        plan = make_plan(profile, Cluster((1, 1), 1e9))
        assert plan.order == ()
        assert plan.iteration_s == pytest.approx(0.6)
        assert plan.units[0].reason == "does not learn"

    def test_no_parameters_and_no_layers(self):
        plan = make_plan(NetProfile((), ()), Cluster((1, 1), 1e9))
        assert (plan.units, plan.order, plan.iteration_s) == ((), (), 0.0)

    def test_bias_of_a_frozen_weight_travels_alone(self):
        params = (
            ParamProfile("w", (30, 20), learns=False, factors=FactorShape(4, 30, 20)),
            ParamProfile("b", (30,), rides_with="w"),
        )
        plan = make_plan(NetProfile((LayerProfile("fc", 0.1, 0.2, ("w", "b")),), params), Cluster((1, 1), 1e9))
        assert {name: unit.scheme for name, unit in plan.unit_of().items()} == {"w": Scheme.LOCAL, "b": Scheme.RING}

    def test_elements_of_different_size_are_not_fused(self):
        params = (ParamProfile("a", (3,), 4), ParamProfile("b", (3,), 8), ParamProfile("c", (3,), 4))
        layers = tuple(LayerProfile(name, 0.0, 0.0, (name,)) for name in "abc")
        request = PlanRequest(fuse_bytes=(1e6,))
        plan = make_plan(NetProfile(layers, params), Cluster((1, 1), 1e9), request)
        assert [unit.params for unit in plan.units] == [("a", "c"), ("b",)]

    def test_shared_parameter_is_ready_at_its_first_reader(self):
        params = (ParamProfile("shared", (1000,)), ParamProfile("p", (1000,)))
        layers = (
            LayerProfile("a", 0.1, 0.2, ("shared",)),
            LayerProfile("b", 0.1, 0.2, ("p",)),
            LayerProfile("c", 0.1, 0.2, ("shared",)),
        )
        profile = NetProfile(layers, params)
        plan = make_plan(profile, Cluster((1, 1), 1e9), PlanRequest(fuse_bytes=(0,)))
        timeline = simulate(plan, profile)
        start = min(e.start_s for e in timeline.of("backward", 0))
        ready = {e.name: e.start_s - start for e in timeline.of("ready", 0)}
        assert ready == pytest.approx({"shared": 0.6, "p": 0.4})


def test_layers_too_small_for_factors_ride_along_where_that_spares_a_message():
    """None of them gains anything by itself: as long as one is left, so is its message."""
    rows, sizes = 32, ((512, 13), (256, 512), (64, 256), (1024, 1728), (1024, 1024), (512, 1024), (16, 24), (24, 16))
    params = tuple(
        ParamProfile(f"fc{number}", size, 4, factors=FactorShape(rows, *size)) for number, size in enumerate(sizes)
    )
    layers = tuple(LayerProfile(param.name, 1e-4, 2e-4, (param.name,)) for param in params)
    profile = NetProfile(layers, params)
    cluster = Cluster((1,) * 4, 1e9, latency_s=1e-3)
    small = [param.name for param in params if rows * 4 * sum(param.shape) * 3 > 1.5 * 4 * param.num_elems]
    assert small == ["fc0", "fc2", "fc6", "fc7"], "these send less by a ring"
    request = PlanRequest(in_flight=1)
    plan = make_plan(profile, cluster, request)
    assert {unit.scheme for unit in plan.units} == {Scheme.FACTORS}
    for number in range(1, len(small) + 1):
        for some in itertools.combinations(small, number):
            dense = replace(request, overrides=tuple(Override(name, Scheme.RING) for name in some))
            assert make_plan(profile, cluster, dense).iteration_s >= plan.iteration_s
