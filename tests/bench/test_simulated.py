"""The comparison of lab and simulator, on a run that was itself simulated: it must agree with itself."""

from __future__ import annotations

import json
from itertools import accumulate

import pytest

from bench import simulated
from poseidon.plan import Cluster, LayerProfile, NetProfile, ParamProfile, make_plan
from poseidon.simulate import Machines, Manner, play

NAMES = {"ready": "UnitReady", "end": "UnitDone"}


@pytest.fixture
def folder(tmp_path):
    """What four ranks would have seen."""
    layers = tuple(LayerProfile(f"l{i}", 0.01, 0.02, (f"l{i}/0",)) for i in range(4))
    profile = NetProfile(layers, tuple(ParamProfile(f"l{i}/0", (400_000,)) for i in range(4)))
    cluster = Cluster((1,) * 4, 1e9, 1e-3)
    plan = make_plan(profile, cluster)
    heard = {rank: [] for rank in range(4)}
    played = play(
        plan,
        profile,
        Machines(cluster),
        6,
        lambda rank: lambda who, what: heard[who].append(what),
        Manner(one_for_all=False),
    )
    starts = {}
    for send in plan.order:
        starts.setdefault(send.unit, []).append([send.start, send.stop])
    for rank, events in heard.items():
        seen = [[e.start_s, NAMES[e.kind], e.index, None] for e in events if e.kind in NAMES]
        moves = [e for e in events if e.kind == "move" and not e.is_pull]
        seen += [[e.start_s, "SendStarted", e.index, starts[e.index][e.chunk]] for e in moves]
        entry = {
            "profile": json.loads(profile.to_json()),
            "plan": json.loads(plan.to_json()),
            "handling_bps": 1e12,
            "begun": [0.0, *accumulate(played.iteration_s[rank])][:-1],
            "events": sorted(seen, key=lambda event: event[0]),
        }
        (tmp_path / f"seen-{rank}.json").write_text(json.dumps(entry))
    return tmp_path


def test_a_simulated_run_agrees_with_itself(folder):
    found = simulated.compare("case", folder)
    assert found["ratio"] == pytest.approx(1.0, rel=0.01)
    assert found["same_starts"]
    assert found["events_in_order"] == 1.0
    assert found["jitter"] == pytest.approx(0.0, abs=1e-3)
    assert found["ratio_without_jitter"] == pytest.approx(1.0, rel=0.01)
    assert simulated.agrees(found)


def test_another_order_and_another_time_are_noticed(folder):
    for path in folder.glob("seen-*.json"):
        entry = json.loads(path.read_text())
        sends = [event for event in entry["events"] if event[1] == "SendStarted"]
        units = [(event[2], event[3]) for event in sends]
        for event, (unit, place) in zip(sends, reversed(units), strict=True):
            event[2], event[3] = unit, place
        entry["begun"] = [2 * time for time in entry["begun"]]
        path.write_text(json.dumps(entry))
    found = simulated.compare("case", folder)
    assert found["ratio"] == pytest.approx(0.5, rel=0.01)
    assert not found["same_starts"]
    assert found["events_in_order"] < 1.0
    assert not simulated.agrees(found)


AGREES = {
    **dict.fromkeys(("lab_s", "simulated_s", "planned_s", "ratio", "ratio_without_jitter"), 1.0),
    "case": "alexnet:server:4:1gbit",
    "same_starts": True,
    "events_in_order": 0.99,
}


@pytest.mark.parametrize(
    "wrong", [{"ratio": 1.101}, {"ratio": 0.899}, {"same_starts": False}, {"events_in_order": 0.98}]
)
def test_all_three_count(wrong):
    assert simulated.agrees(AGREES)
    assert not simulated.agrees({**AGREES, **wrong})
    results = [simulated.over_rounds([AGREES]), simulated.over_rounds([{**AGREES, **wrong}])]
    told = simulated.results_text(results)
    assert told.endswith("1 of 2 cases agree: time within 10%, and in order.")


def test_medians_of_rounds_count_and_every_start():
    rounds = [{**AGREES, "ratio": ratio} for ratio in (0.8, 1.02, 1.3)]
    result = simulated.over_rounds(rounds)
    assert result["ratio"] == 1.02
    assert simulated.agrees(result)
    assert "| 1.02 (0.80 – 1.30) |" in simulated.results_text([result])
    assert not simulated.agrees(simulated.over_rounds([*rounds, {**AGREES, "same_starts": False}]))


def test_the_page_has_the_table_of_its_figures():
    text = simulated.PAGE.read_text(encoding="utf-8")
    between = text.partition(simulated.BEGIN)[2].partition(simulated.END)[0].strip()
    if simulated.RESULTS.exists():
        assert between == simulated.results_text(json.loads(simulated.RESULTS.read_text()))
    else:
        assert between
