"""Bytes on the wire against the plan: what each node's link counts in an iteration, over what the plan predicts.

    sudo python -m bench.bytes [--nodes 1,1,1,1/1,1,1/2,2/2,1,1] [--iterations 6] [--json OUT]

Emulated hosts (`bench/netlab.py`) with any numbers of workers, real TCP, real training of a small net; every scheme by
force, on a full and on a narrow wire. The link's own counter (/sys/class/net/eth0/statistics/tx_bytes) is read when all
workers stand still, before and after some iterations. Payload is what is predicted; headers, acknowledgements and signs
of life come on top: measured / predicted of the busiest node must lie between 1.00 and 1.07. ROWS is held against the
rows that were really touched, each counted once per node.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bench.netlab import Lab, Links, sent_bytes
from poseidon.comm.rows import Rows
from poseidon.plan import Cluster, PlanRequest, Scheme, make_plan, parse_nodes
from poseidon.run.distribute import Distribution, distribute
from poseidon.run.layer_times import estimated_times
from poseidon.run.profile import profile_net
from poseidon.run.roundtable import Roundtable
from poseidon.solver import Solver
from poseidon.spec import parse_net, parse_solver
from poseidon.transport.c10d import C10dOptions, Master, connect
from poseidon.transport.interface import choose_interface
from poseidon.transport.levels import share_nodes

ROOT = Path(__file__).resolve().parent.parent
LEAST, MOST = 1.00, 1.07
SCHEMES = (Scheme.RING, Scheme.DOUBLING, Scheme.SERVER, Scheme.FACTORS, Scheme.FACTOR_SERVER, Scheme.ROWS)
NARROW = ("ring", "server", "factor-server")
BATCH, WIDTH, TABLE_ROWS = 32, 256, 20_000

DENSE_NET = f"""
    layer {{ name: "x" type: "DummyData" top: "x" dummy_data_param {{ shape {{ dim: {BATCH} dim: 1024 }}
             data_filler {{ type: "gaussian" }} }} }}
    layer {{ name: "t" type: "DummyData" top: "t" dummy_data_param {{ shape {{ dim: {BATCH} dim: 512 }} }} }}
    layer {{ name: "fc1" type: "InnerProduct" bottom: "x" top: "h" inner_product_param {{ num_output: 2048
             weight_filler {{ type: "xavier" }} }} }}
    layer {{ name: "relu" type: "ReLU" bottom: "h" top: "h" }}
    layer {{ name: "fc2" type: "InnerProduct" bottom: "h" top: "y" inner_product_param {{ num_output: 512
             weight_filler {{ type: "xavier" }} }} }}
    layer {{ name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }}
"""
ROWS_NET = f"""
    layer {{ name: "word" type: "DummyData" top: "word" dummy_data_param {{ shape {{ dim: 1024 }}
             data_filler {{ type: "uniform" min: 0 max: {TABLE_ROWS - 1} }} }} }}
    layer {{ name: "t" type: "DummyData" top: "t" dummy_data_param {{ shape {{ dim: 1024 dim: {WIDTH} }} }} }}
    layer {{ name: "embed" type: "Embed" bottom: "word" top: "y" embed_param {{ num_output: {WIDTH} bias_term: false
             input_dim: {TABLE_ROWS} weight_filler {{ type: "xavier" }} }} }}
    layer {{ name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }}
"""


@dataclass(frozen=True, slots=True)
class Result:
    nodes: str
    scheme: str
    wire: str
    predicted_mb: float
    measured_mb: float
    ratio: float

    @property
    def holds(self) -> bool:
        return LEAST <= self.ratio <= MOST


# -- one worker -------------------------------------------------------------------------------------------------------
def solver_of(scheme: Scheme) -> Solver:
    param = parse_solver('base_lr: 0.001 lr_policy: "fixed" max_iter: 1000 random_seed: 1 snapshot_after_train: false')
    param.net_param.CopyFrom(parse_net(ROWS_NET if scheme is Scheme.ROWS else DENSE_NET).net)
    return Solver(param)


def measure(options: argparse.Namespace) -> list[Result]:
    """On every worker of the job; the results are the same everywhere."""
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    counts = parse_nodes(options.nodes)
    nodes = [node for node, count in enumerate(counts) for _ in range(count)]
    master = Master(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    address = choose_interface(master.address, is_multi_host=True).address
    wire = connect(rank, size, master, C10dOptions(address))
    sharing = share_nodes(wire, nodes)
    if sharing.problem:
        raise SystemExit(sharing.problem)
    table = Roundtable(wire)
    results = []
    for scheme in SCHEMES:
        for width in ("fp32", "bf16") if scheme.value in NARROW else ("fp32",):
            solver = solver_of(scheme)
            request = PlanRequest(scheme=scheme, wire=width)
            profile = profile_net(solver.net, estimated_times(solver.net, 1e9))
            plan = make_plan(profile, Cluster(counts, bandwidth_bps=1e9), request)
            with distribute(solver, sharing.transport, plan) as distribution:
                found = bytes_of(solver, distribution, table, options.iterations)
            sent = [max(found.by_rank[at] for at in range(size) if nodes[at] == node) for node in range(len(counts))]
            predicted = plan.bytes_sent if scheme is not Scheme.ROWS else rows_sent(found.rows, nodes)
            most = max(sent) / options.iterations
            results.append(Result(options.nodes, scheme.value, width, predicted / 1e6, most / 1e6, most / predicted))
    table.meet()
    wire.close()
    return results


@dataclass(frozen=True, slots=True)
class Found:
    """By rank: what its link has counted, and the row numbers it has touched in each iteration."""

    by_rank: list[int]
    rows: list[list[list[int]]]


def bytes_of(solver: Solver, distribution: Distribution, table: Roundtable, num_iterations: int) -> Found:
    touched: list[list[int]] = []
    for exchange in distribution.updates.exchanges if distribution.updates is not None else ():
        if isinstance(exchange, Rows):
            watch(exchange, touched)
    solver.step(2)
    solver.updates.drain()
    touched.clear()
    table.meet()
    before = sent_bytes()
    solver.step(num_iterations)
    solver.updates.drain()
    table.meet()
    own = sent_bytes() - before
    by_rank = table.gather(torch.tensor(own)).tolist()
    return Found(by_rank, [json.loads(text) for text in table.gather_texts(json.dumps(touched))])


def watch(exchange: Rows, touched: list[list[int]]) -> None:
    offer = exchange.offer

    def watched(member: Any, grad: Any) -> None:
        assert grad is not None
        touched.append(grad.coalesce().indices()[0].tolist())
        offer(member, grad)

    exchange.offer = watched  # type: ignore[method-assign]


def rows_sent(rows: Sequence[Sequence[Sequence[int]]], nodes: Sequence[int]) -> float:
    """What the busiest node sends in an iteration if blocks of rows, each once per node, go around a ring."""
    num_nodes = max(nodes) + 1
    sent = [0.0] * num_nodes
    num_iterations = len(rows[0])
    for iteration in range(num_iterations):
        blocks = []
        for node in range(num_nodes):
            union = set().union(*(own[iteration] for rank, own in enumerate(rows) if nodes[rank] == node))
            blocks.append(len(union) * (4 * WIDTH + 4))
        for node in range(num_nodes):
            sent[node] += sum(blocks) - blocks[(node + 1) % num_nodes]
    return max(sent) / num_iterations


# -- the lab ----------------------------------------------------------------------------------------------------------
def run_host(options: argparse.Namespace, words: list[str]) -> int:
    """All workers of one emulated host."""
    counts, host = parse_nodes(options.nodes), int(os.environ["RANK"])
    places = {"WORLD_SIZE": sum(counts), "LOCAL_WORLD_SIZE": counts[host]}
    processes = []
    for local in range(counts[host]):
        own = places | {"RANK": sum(counts[:host]) + local, "LOCAL_RANK": local}
        environment = os.environ | {name: str(value) for name, value in own.items()}
        processes.append(subprocess.Popen([sys.executable, "-m", "bench.bytes", "--worker", *words], env=environment))
    return max(abs(process.wait()) for process in processes)


def run_in_lab(nodes: str, options: argparse.Namespace) -> list[Result]:
    num_hosts = len(parse_nodes(nodes))
    os.environ["PYTHONPATH"] = str(ROOT)
    links = Links((options.rate,))
    with tempfile.TemporaryDirectory() as folder, Lab(f"by{os.getpid()}", num_hosts, links) as lab:
        out = Path(folder) / "results.json"
        words = ["--nodes", nodes, "--iterations", str(options.iterations), "--out", str(out)]
        code = lab.run([sys.executable, "-m", "bench.bytes", "--host", *words], show_all=True)
        if code != 0:
            raise SystemExit(f"bench.bytes: a worker failed with exit code {code}")
        return [Result(**found) for found in json.loads(out.read_text())]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="1,1,1,1/1,1,1/2,2/2,1,1", help="workers of each node; several jobs with /")
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--json", type=Path)
    for hidden in ("--host", "--worker"):
        parser.add_argument(hidden, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.host:
        return run_host(options, [word for word in words if word != "--host"])
    if options.worker:
        found = measure(options)
        if os.environ["RANK"] == "0":
            options.out.write_text(json.dumps([asdict(result) for result in found]))
        return 0
    print(f"{'workers per node':18}{'scheme':15}{'wire':6}{'predicted':>12}{'measured':>12}{'ratio':>8}")
    results = []
    for nodes in options.nodes.split("/"):
        for result in run_in_lab(nodes, options):
            results.append(result)
            figures = f"{result.predicted_mb:>9.3f} MB{result.measured_mb:>9.3f} MB{result.ratio:>8.3f}"
            problem = "" if result.holds else f"   <-- not within {LEAST:.2f} … {MOST:.2f}"
            print(f"{nodes:18}{result.scheme:15}{result.wire:6}{figures}{problem}", flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 0 if all(result.holds for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
