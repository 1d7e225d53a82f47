"""A run folder made up for tests: four ranks on two hosts, played by the simulator, with a loss that falls."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

from poseidon.plan import (
    Cluster,
    FactorShape,
    LayerProfile,
    NetProfile,
    ParamProfile,
    PlanRequest,
    make_plan,
    simulate,
)
from poseidon.record import (
    Event,
    Facts,
    Metric,
    MetricsWriter,
    Run,
    Trace,
    TraceWriter,
    WorkerFigures,
    read,
    write_facts,
)

NET = """
name: "digits"
layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "x" batch_size: 64 } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 20 kernel_size: 5 } }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "conv2" type: "Convolution" bottom: "pool1" top: "conv2"
  convolution_param { num_output: 50 kernel_size: 5 } }
layer { name: "relu2" type: "ReLU" bottom: "conv2" top: "conv2" }
layer { name: "ip1" type: "InnerProduct" bottom: "conv2" top: "ip1" inner_product_param { num_output: 500 } }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2" inner_product_param { num_output: 10 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
"""
SHAPES = {
    "blobs": {
        "data": (64, 1, 28, 28), "label": (64,), "conv1": (64, 20, 24, 24), "pool1": (64, 20, 12, 12),
        "conv2": (64, 50, 8, 8), "ip1": (64, 500), "ip2": (64, 10), "loss": (),
    },
    "params": {},
}  # fmt: skip
_PARAMS = {
    "conv1/0": (20, 1, 5, 5), "conv1/1": (20,), "conv2/0": (50, 20, 5, 5), "conv2/1": (50,),
    "ip1/0": (500, 3200), "ip1/1": (500,), "ip2/0": (10, 500), "ip2/1": (10,),
}  # fmt: skip
_SECONDS = {
    "data": (2e-4, 0), "conv1": (2e-3, 3e-3), "pool1": (5e-4, 6e-4), "conv2": (3e-3, 6e-3), "relu2": (2e-4, 2e-4),
    "ip1": (2e-3, 5e-3), "ip2": (2e-4, 3e-4), "loss": (1e-4, 1e-4),
}  # fmt: skip
NUM_RANKS, FIRST, NUM_ITERATIONS = 4, 101, 3
CLUSTER = Cluster((2, 2), 0.94e9, 1e-4, flops=2e11)


def profile() -> NetProfile:
    factors = {"ip1/0": FactorShape(64, 500, 3200), "ip2/0": FactorShape(64, 10, 500)}
    rides = {"ip1/1": "ip1/0", "ip2/1": "ip2/0"}
    params = [
        ParamProfile(name, shape, factors=factors.get(name), rides_with=rides.get(name))
        for name, shape in _PARAMS.items()
    ]
    layers = [
        LayerProfile(name, *seconds, params=tuple(param for param in _PARAMS if param.startswith(f"{name}/")))
        for name, seconds in _SECONDS.items()
    ]
    return NetProfile(tuple(layers), tuple(params))


def trace(rank: int, plan) -> Trace:
    """What the simulator plays, as that rank would have recorded it; later ranks are a little late."""
    timeline = simulate(plan, profile(), NUM_ITERATIONS + 1)
    events = []
    for event in timeline.events:
        kind = {"send": "move", "pull": "move", "apply": "update"}.get(event.kind, event.kind)
        if event.iteration == 0 and event.kind == "forward":
            continue
        iteration = event.iteration + (0 if event.kind == "forward" else 1)
        if not 1 <= iteration <= NUM_ITERATIONS:
            continue
        is_network = kind in ("move", "ready")
        events.append(
            Event(
                kind,
                event.name,
                FIRST + iteration - 1,
                event.start_s + rank * 2e-4,
                None if kind == "ready" else event.end_s - event.start_s,
                plan.units[event.index].bytes_sent if kind == "move" else None,
                event.index if is_network or kind == "update" else None,
                0 if kind == "move" else None,
            )
        )
    for iteration in range(FIRST, FIRST + NUM_ITERATIONS):
        own = [event for event in events if event.iteration == iteration and event.kind in ("forward", "backward")]
        start_s = min(event.start_s for event in own)
        events.append(Event("iteration", "", iteration, start_s, max(e.end_s for e in own) - start_s))
    forwards = sorted((e for e in events if e.kind == "forward"), key=lambda e: e.start_s)
    for before, after in itertools.pairwise(forwards):
        if before.iteration == after.iteration and after.start_s - before.end_s > 1e-6:
            events.append(
                Event("wait", after.name, after.iteration, before.end_s, after.start_s - before.end_s, None, 0)
            )
    ordered = tuple(sorted(events, key=lambda event: event.start_s))
    return Trace(rank, f"node{rank // 2 + 1}", 0.0, 2.5e-5, 1.7e9, ordered)


def metrics() -> list[Metric]:
    found = []
    for iteration in range(0, 1001, 20):
        loss = 2.3 * math.exp(-iteration / 250) + 0.05 + 0.04 * math.sin(iteration)
        workers = tuple(WorkerFigures(rank, 0.02, 0.002 + 0.001 * rank, 2e5, 2e5) for rank in range(NUM_RANKS))
        found.append(
            Metric(
                "train", iteration, iteration * 0.025, {"loss": loss}, loss, 0.01 * (1 - iteration / 1100),
                256 / (0.025 + 0.004 * math.sin(iteration / 90)), 0.025, workers,
            )
        )  # fmt: skip
        if iteration % 100 == 0:
            accuracy = 1 - 0.9 * math.exp(-iteration / 180)
            outputs = {"accuracy": accuracy, "loss": loss * 0.9}
            found.append(Metric("test", iteration, iteration * 0.025 + 0.01, outputs))
    return found


def facts(plan=None) -> Facts:
    return Facts(
        kind="run",
        command=("poseidon", "train", "--solver=models/lenet/solver.prototxt", "--workers=4", "--record=runs/lenet"),
        started=1.76e9,
        finished=1.76e9 + 31.5,
        outcome="finished",
        configuration={"base_lr": "0.01", "lr_policy": "inv", "max_iter": "1000", "--workers": "4"},
        net=NET,
        cluster={
            "workers": NUM_RANKS,
            "nodes": [{"host": "node1", "ranks": [0, 1]}, {"host": "node2", "ranks": [2, 3]}],
            "bandwidth": 117.5e6,
            "latency": 1e-4,
            "interface": "eth0",
            "torch": "2.13.0",
        },
        plan=None if plan is None else json.loads(plan.to_json()),
        shapes=SHAPES,
    )


def write_run(folder, *, net: str = NET, num_ranks: int = NUM_RANKS) -> Run:
    """Writes the folder and reads it back."""
    plan = make_plan(profile(), CLUSTER, PlanRequest())
    write_facts(folder, replace(facts(plan), net=net))
    with MetricsWriter(folder) as writer:
        for metric in metrics():
            writer.write(metric)
    for rank in range(num_ranks):
        whole = trace(rank, plan)
        with TraceWriter(folder, replace(whole, events=())) as writer:
            writer.write(list(whole.events))
    return read(folder)
