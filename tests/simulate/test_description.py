"""Clusters as people write them."""

from __future__ import annotations

import json
import math

import pytest

from poseidon.errors import UsageError
from poseidon.plan import PAYLOAD_SHARE, Cluster
from poseidon.simulate import Machines, Straggler, machines_of, read_description


def test_all_words(tmp_path):
    path = tmp_path / "cluster.json"
    said = {
        "nodes": "2x4,1x2",
        "workers": 10,
        "bandwidth": "10gbit",
        "latency": "0.2ms",
        "overhead": "10us",
        "own_latency": "50us",
        "own-overhead": "20us",
        "switch": "2:4",
        "handling": "20gbit",
        "memory": "40gbit",
        "flops": 6e12,
        "update": "480gbit",
        "jitter": 0.05,
        "straggler": "3:2.0,7:1.5",
        "seed": 9,
    }
    path.write_text(json.dumps(said))
    machines = machines_of(read_description(str(path)))
    assert machines.cluster == Cluster(
        node_workers=(4, 4, 2),
        bandwidth_bps=1e10 * PAYLOAD_SHARE,
        latency_s=0.2 * 1e-3,
        overhead_s=10 * 1e-6,
        own_latency_s=50 * 1e-6,
        own_overhead_s=20 * 1e-6,
        local_bps=4e10,
        flops=6e12,
        update_bps=4.8e11,
    )
    assert (machines.nodes_per_switch, machines.oversubscription, machines.handling_bps) == (2, 4.0, 2e10)
    assert (machines.jitter, machines.seed) == (0.05, 9)
    assert machines.stragglers == (Straggler(3, 2.0), Straggler(7, 1.5))
    assert machines.num_switches == 2
    assert machines.uplink_bps == pytest.approx(machines.cluster.bandwidth_bps * 2 / 4)
    assert "worker 3 takes 2 times as long" in machines.describe()


def test_little_is_needed():
    machines = machines_of({"workers": "3", "bandwidth": "1gbit"})
    assert machines.cluster.node_workers == (1, 1, 1)
    assert machines.are_alike
    assert machines.handling_bps == math.inf


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"workers": "3"}, "--bandwidth is missing"),
        ({"bandwidth": "1gbit"}, "--workers is missing"),
        ({"workers": "0", "bandwidth": "1gbit"}, "from 1 to 100000 workers"),
        ({"workers": "x", "bandwidth": "1gbit"}, "whole number, 0 or more, got 'x'"),
        ({"workers": "4", "nodes": "2x3", "bandwidth": "1gbit"}, "have 6 workers, but 4 are asked for"),
        ({"workers": "4", "bandwidth": "1gbit", "switch": "x:2"}, "NODES:OVERSUBSCRIPTION"),
        ({"workers": "4", "bandwidth": "1gbit", "switch": "0:2"}, "NODES:OVERSUBSCRIPTION"),
        ({"workers": "4", "bandwidth": "1gbit", "switch": "2:0.5"}, "oversubscribed 1 to 1 or more, got 0.5"),
        ({"workers": "4", "bandwidth": "1gbit", "jitter": "1.5"}, "jitter is a share of compute"),
        ({"workers": "4", "bandwidth": "1gbit", "jitter": "nan"}, "expected a number, got 'nan'"),
        ({"workers": "4", "bandwidth": "1gbit", "straggler": "3"}, "WORKER:TIMES"),
        ({"workers": "4", "bandwidth": "1gbit", "straggler": "4:2"}, "no worker 4 to be a straggler"),
        ({"workers": "4", "bandwidth": "1gbit", "straggler": "1:0"}, "so many times as long, above 0"),
        ({"workers": "4", "bandwidth": "1gbit", "straggler": "1:2,1:3"}, "named as a straggler twice"),
    ],
)
def test_mistakes_are_told(said, problem):
    with pytest.raises(UsageError, match=problem):
        machines_of(said)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "got text that is none"),
        ("[1]", "expected a JSON object"),
        ('{"bandwith": "1gbit"}', "there is no 'bandwith'"),
        ('{"workers": [1]}', "workers: expected text or a number"),
        ('{"jitter": true}', "jitter: expected text or a number"),
    ],
)
def test_files_are_not_trusted(tmp_path, text, problem):
    path = tmp_path / "cluster.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=problem):
        read_description(str(path))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_description(str(tmp_path / "none.json"))


@pytest.mark.parametrize("options", [{"nodes_per_switch": -1}, {"handling_bps": 0.0}, {"seed": -1}])
def test_machines_that_cannot_be(options):
    with pytest.raises(UsageError):
        Machines(Cluster((1, 1), 1e9), **options)
