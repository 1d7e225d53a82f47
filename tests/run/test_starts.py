"""Workers of a real job that were started differently: all refuse, at once, with what differs and on whom.

Nothing else may come first. What a worker was started with decides which calls it makes, and calls that do not match
would read each other's messages.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from poseidon.comm.factors import FactorExchange
from poseidon.plan import PlanRequest, Scheme, parse_overrides
from poseidon.run.distribute import DistributeOptions
from poseidon.run.planning import Links
from poseidon.run.resume import Resume
from poseidon.solver import Solver
from tests.run.starts import Start, run_all
from tests.solver.small import net_text

DEEPER = """layer { name: "fc9" type: "InnerProduct" bottom: "h" top: "g" inner_product_param { num_output: 2 } }
            layer { name: "hush" type: "Silence" bottom: "g" }"""
SEEDLESS = "random_seed: -1"

# What rank 1 has instead of the common, and what is said of it.
DIFFERENCES: dict[str, tuple[dict[str, Any], str]] = {
    "version": ({"version": "0.0.1"}, r"version of Poseidon: \S+ on rank 0 .*; 0\.0\.1 on rank 1 .*install the same"),
    "seed": ({"solver": SEEDLESS}, r"solver, line \d+: random_seed: 3 on rank 0 .*; random_seed: -1 on rank 1"),
    "rate": ({"solver": "base_lr: 0.5"}, r"solver, line 1: base_lr: 0\.05 on rank 0 .*; base_lr: 0\.5 on rank 1"),
    "dtype": ({"dtype": torch.float64}, r"dtype: torch\.float32 on rank 0 .*; torch\.float64 on rank 1"),
    "scheme": (
        {"request": PlanRequest(scheme=Scheme.SERVER)},
        r"plan asked for, line 2: scheme: None on rank 0 .*; scheme: server on rank 1 .*the same --scheme, --schemes",
    ),
    "schemes": (
        {"request": PlanRequest(overrides=parse_overrides("fc1=ring"))},
        r"plan asked for, line 3: overrides: none on rank 0 .*; overrides: fc1=ring on rank 1",
    ),
    "wire": ({"request": PlanRequest(wire="bf16")}, r"plan asked for, line 1: wire: fp32 on rank 0 .*; wire: bf16 on"),
    "pattern": ({"request": PlanRequest(pattern="gpi")}, r"pattern: collective on rank 0 .*; pattern: gpi on rank 1"),
    "snapshot auto": (
        {"resume": Resume("auto")},
        r"snapshot to go on from: no snapshot on rank 0 .*; the newest snapshot on rank 1 .*the same --snapshot",
    ),
    "snapshot": ({"resume": Resume("s.solverstate")}, r"snapshot to go on from: .*; a snapshot by its name on rank 1"),
    "measured link": ({"links": Links()}, r"links, line 1: bandwidth_bps: 1000000000\.0 on rank 0 .*: None on rank 1"),
    "limit": ({"links": Links(1e9, None, 1e8)}, r"links, line 3: limit_bps: None on rank 0 .*; limit_bps: 100000000"),
    "servers": (
        {"team": DistributeOptions(staleness=0, servers=1)},
        r"options, line \d+: staleness: None on rank 0 .*; staleness: 0 on rank 1",
    ),
    "statistics": ({"team": DistributeOptions(sync_bn=True)}, r"options, line 2: sync_bn: False on rank 0"),
    "device": ({"device": "meta"}, r"options of the nets, line 1: device: cpu on rank 0 .*; device: meta on rank 1"),
}


def refusal(starts: list[Start]) -> str:
    """What all workers say, none of which has begun to train."""
    ends = run_all(starts)
    assert {end.error for end in ends} == {"WorkersDiffer"}, ends
    assert not any(end.trained for end in ends)
    (text,) = {end.text for end in ends}
    return text


@pytest.mark.parametrize("name", DIFFERENCES)
def test_workers_started_differently(listing, name):
    own, pattern = DIFFERENCES[name]
    common = Start(net_text(listing))
    text = refusal([common, replace(common, **own)])
    assert text.startswith("workers differ in the ")
    assert re.search(pattern, text), text


def test_nets_of_different_depth(listing):
    """The net itself is named, and not what measuring different nets would run into."""
    common = Start(net_text(listing))
    text = refusal([common, common, replace(common, net=net_text(listing) + DEEPER)])
    assert text.startswith("workers differ in the train net, line ")
    assert "on ranks 0 and 1 (host" in text
    assert "start all workers with the same solver and net" in text


# -- what may differ --------------------------------------------------------------------------------------------------
# Sixteen rows of factors, of 10 and 500 elements: in float32 two threads give their product other bits than one does.
WIDE = """
    layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 8 dim: 500 }
            data_filler { type: "gaussian" } } }
    layer { name: "t" type: "DummyData" top: "t" dummy_data_param { shape { dim: 8 dim: 10 } } }
    layer { name: "fc" type: "InnerProduct" bottom: "x" top: "y"
            inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
    layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }
"""


def count_threads(solver: Solver, seen: list[Any]) -> None:
    """Notes how many threads every product of factors is computed by."""
    for exchange in solver.updates.exchanges:
        assert isinstance(exchange, FactorExchange)
        product = exchange.product

        def counted(a: torch.Tensor, b: torch.Tensor, product=product) -> torch.Tensor:
            seen.append(torch.get_num_threads())
            return product(a, b)

        exchange.product = counted


@pytest.mark.parametrize("pattern", ["collective", "gpi"])
def test_workers_with_different_numbers_of_threads_keep_the_same_bits(pattern):
    request = PlanRequest(scheme=Scheme.FACTORS, pattern=pattern)
    one = Start(WIDE, "max_iter: 4", request=request, team=DistributeOptions(verify_replicas=1))
    ends = run_all([one, replace(one, threads=2)], count_threads)
    assert [end.text for end in ends] == ["", ""]
    assert [end.seen for end in ends] == [[1] * 4] * 2
    assert ends[0].parameters == ends[1].parameters
