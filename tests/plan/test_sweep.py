"""Sweeps: which settings an axis has, and forecasts held against closed forms."""

from __future__ import annotations

import json

import pytest

from poseidon.errors import UsageError
from poseidon.plan import (
    PAYLOAD_SHARE,
    Axis,
    Cluster,
    LayerProfile,
    NetProfile,
    ParamProfile,
    PlanRequest,
    Scheme,
    Setting,
    parse_sweep,
    sweep,
    sweep_json,
    sweep_text,
)
from poseidon.plan.sweep import settings_of

GIVEN = Setting(Cluster((1,) * 4, 1e9 * PAYLOAD_SHARE, latency_s=0.0, send_s=0.0), batch=32)


def one_layer(batch: int) -> NetProfile:
    """4 MB of parameters; 1 ms per image, a third of it forward."""
    layer = LayerProfile("conv", batch * 1e-3 / 3, batch * 2e-3 / 3, ("conv/0",))
    return NetProfile((layer,), (ParamProfile("conv/0", (1000, 1000)),))


def values(axis: str, given: Setting = GIVEN) -> list[str]:
    return [value for value, _ in settings_of(parse_sweep(axis)[0], given)]


def test_usual_values_hold_the_given_one_and_one_host_more():
    assert values("workers") == ["1", "2", "4", "5", "8", "16"]
    assert values("batch") == ["16", "32", "64", "128"]
    assert values("bandwidth") == ["1 Gbit/s", "2.5 Gbit/s", "10 Gbit/s", "25 Gbit/s", "40 Gbit/s", "100 Gbit/s"]
    odd = Setting(Cluster((1,), 0.2e9 * PAYLOAD_SHARE), batch=1)
    assert values("workers", odd) == ["1", "2", "4"]
    assert values("batch", odd) == ["1", "2", "4"]
    assert values("bandwidth", odd)[:2] == ["200 Mbit/s", "1 Gbit/s"]


def test_values_as_asked_for():
    assert parse_sweep("workers=8:2, bandwidth = 10gbit") == (
        Axis("workers", ("8", "2")),
        Axis("bandwidth", ("10gbit",)),
    )
    assert values("workers=8:2") == ["2", "4", "8"]
    assert values("bandwidth=10gbit:200mbit") == ["200 Mbit/s", "1 Gbit/s", "10 Gbit/s"]
    assert values("batch=32:33") == ["32", "33"]


def test_nodes_come_whole():
    given = Setting(Cluster((4, 4), 1e9), batch=8)
    by_workers = {value: setting.cluster.node_workers for value, setting in settings_of(Axis("workers"), given)}
    assert by_workers == {"4": (4,), "8": (4, 4), "12": (4, 4, 4), "16": (4,) * 4, "32": (4,) * 8}
    uneven = Setting(Cluster((4, 2), 1e9), batch=8)
    assert dict(settings_of(Axis("workers"), uneven))["10"].cluster.node_workers == (4, 2, 4)
    with pytest.raises(UsageError, match="a node has 4 workers: expected multiples of that in the sweep, got 6"):
        settings_of(Axis("workers", ("6",)), given)


def test_forecast_of_one_layer_is_compute_and_wire():
    """One unit cannot be overlapped with anything but nothing: T = compute + 2·B·(P − 1)/P / β."""
    points = sweep(
        parse_sweep("bandwidth=10gbit,workers=8,batch=64"), GIVEN, one_layer, PlanRequest(scheme=Scheme.RING)
    )
    assert [(point.axis, point.value, point.is_given) for point in points] == [
        ("bandwidth", "1 Gbit/s", True),
        ("bandwidth", "10 Gbit/s", False),
        ("workers", "4", True),
        ("workers", "8", False),
        ("batch", "32", True),
        ("batch", "64", False),
    ]
    for point, (num_workers, gbit, batch) in zip(
        points, [(4, 1, 32), (4, 10, 32), (4, 1, 32), (8, 1, 32), (4, 1, 32), (4, 1, 64)], strict=True
    ):
        num_bytes = 2 * 4e6 * (num_workers - 1) / num_workers
        iteration_s = batch * 1e-3 + num_bytes * 8 / (gbit * 1e9 * PAYLOAD_SHARE)
        assert point.iteration_s == pytest.approx(iteration_s, rel=1e-9)
        assert point.images_per_s == pytest.approx(num_workers * batch / iteration_s)
        assert point.speed_up == pytest.approx(num_workers * batch * 1e-3 / iteration_s)
        assert point.efficiency == pytest.approx(batch * 1e-3 / iteration_s)
        assert point.bytes_sent == num_bytes
        assert point.schemes == ((Scheme.RING, 1.0),)


def test_images_of_an_iteration_count_iter_size():
    (one, _) = sweep((Axis("batch", ("64",)),), GIVEN, one_layer, PlanRequest())
    (four, _) = sweep((Axis("batch", ("64",)),), GIVEN, one_layer, PlanRequest(), iter_size=4)
    assert four.images_per_s == pytest.approx(4 * one.images_per_s)


def test_alone_there_is_nothing_to_send():
    (alone, *_) = sweep((Axis("workers"),), GIVEN, one_layer, PlanRequest())
    assert (alone.num_workers, alone.speed_up, alone.bytes_sent, alone.schemes) == (1, 1.0, 0, ())


def test_text_and_json_tell_the_same():
    points = sweep(parse_sweep("bandwidth,workers"), GIVEN, one_layer, PlanRequest())
    text, objects = sweep_text(points), json.loads(sweep_json(points))
    blocks = text.split("\n\n")
    assert [block.split()[0] for block in blocks] == ["bandwidth", "workers"]
    assert sum(line.startswith("› ") for line in text.splitlines()) == 2
    rows = [line for block in blocks for line in block.splitlines()[1:]]
    assert len(rows) == len(objects) == len(points)
    for row, found, point in zip(rows, objects, points, strict=True):
        assert row[2:].split("  ")[0].strip() in (found["value"], "") or found["value"] in row
        assert f"{found['speed_up']:.2f}" in row
        assert found["images_per_s"] == point.images_per_s
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("speed", "a sweep goes over some of bandwidth, workers, batch, separated by commas, got 'speed'"),
        ("", "a sweep goes over some of"),
        ("batch,batch=2", "the sweep names batch twice"),
        ("workers=", "values of workers are separated by colons, as in workers=8:16"),
        ("bandwidth=1gbit::2gbit", "as in bandwidth=1gbit:10gbit"),
        ("workers=" + ":".join(map(str, range(1, 70))), "at most 64 values"),
    ],
)
def test_what_is_no_sweep(text, message):
    with pytest.raises(UsageError, match=message):
        parse_sweep(text)


@pytest.mark.parametrize("axis", [Axis("workers", ("0",)), Axis("batch", ("-1",)), Axis("batch", ("1e3",))])
def test_counts_are_numbers(axis):
    with pytest.raises(UsageError, match=f"values of {axis.name} are numbers from 1"):
        settings_of(axis, GIVEN)
