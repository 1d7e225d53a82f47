"""Workers that were started differently refuse to train, all of them, with what differs and on whom."""

from __future__ import annotations

import re

import pytest
import torch

import poseidon
from poseidon.errors import WorkersDiffer
from poseidon.plan import Scheme
from poseidon.run.distribute import DistributeOptions, distribute
from poseidon.run.facts import Fact, check_facts, version_facts
from poseidon.run.roundtable import Roundtable
from poseidon.solver import NetOptions, Solver
from poseidon.transport.inproc import run_workers
from tests.run.jobs import built, in_team, plan_for, solver_param
from tests.solver.small import net_text

HOSTS = ["anna", "berta", "berta", "carla"]


def refusal(size, start, hosts=None):
    """The error that all workers raise; `start(transport)` builds and distributes on each."""
    caught = []

    def work(transport):
        try:
            start(transport)
        except WorkersDiffer as problem:
            caught.append((str(problem), problem.ranks))

    run_workers(size, work, timeout_s=30, hosts=hosts)
    assert len(caught) == size
    assert len(set(caught)) == 1
    return caught[0]


def refused_params(size, param, hosts=None):
    def start(transport):
        solver, _ = built(param(transport.rank))
        distribute(solver, transport, plan_for(solver, size))

    return refusal(size, start, hosts)


def test_nets(listing):
    """The line, in the text of the filtered net."""

    def param(rank):
        return solver_param(net_text(listing).replace("num_output: 5", f"num_output: {6 if rank == 2 else 5}"))

    text, ranks = refused_params(4, param, HOSTS)
    assert re.fullmatch(
        r"workers differ in the train net, line \d+: num_output: 5 on ranks 0, 1 and 3 \(hosts anna, berta, carla\); "
        r"num_output: 6 on rank 2 \(host berta\); start all workers with the same solver and net",
        text,
    )
    assert ranks == (2,)


def test_test_nets(listing):
    def param(rank):
        branch = 'layer { name: "more" type: "Silence" bottom: "h" include { phase: TEST } }' if rank else ""
        return solver_param(net_text(listing) + branch, "test_interval: 5 test_iter: 2")

    text, ranks = refused_params(3, param)
    assert text.startswith("workers differ in the test nets, line ")
    assert ranks == (1, 2)


def test_settings(listing):
    text, ranks = refused_params(2, lambda rank: solver_param(net_text(listing), f"base_lr: 0.{rank + 1}"))
    assert "workers differ in the solver, line 1: base_lr: 0.1 on rank 0" in text
    assert "base_lr: 0.2 on rank 1" in text
    assert ranks == (1,)


def test_a_setting_that_only_some_have(listing):
    text, _ = refused_params(2, lambda rank: solver_param(net_text(listing), "gamma: 0.5" if rank == 0 else ""))
    assert "gamma: 0.5 on rank 0" in text


def test_places_may_differ(listing, tmp_path):
    """Devices, and where on a host files are."""

    def param(rank):
        (tmp_path / f"host{rank}").mkdir(exist_ok=True)
        text = f'device_id: {rank} snapshot_prefix: "{tmp_path / f"host{rank}" / "s"}"'
        return solver_param(net_text(listing, batch=2), text)

    assert in_team(2, param, lambda worker: (worker.solver.step(2), worker.solver.iter)[1]) == [2, 2]


def test_seeds_that_only_some_have(listing):
    text, _ = refused_params(2, lambda rank: solver_param(net_text(listing), f"random_seed: {-1 if rank else 4}"))
    assert "random_seed: 4 on rank 0" in text


def started(param, *, dtype=torch.float64, options=None, scheme=None):
    def start(transport):
        def own(value):
            return value(transport.rank) if callable(value) else value

        solver = Solver(param, options=NetOptions(dtype=own(dtype)))
        distribute(solver, transport, plan_for(solver, transport.size, own(scheme)), own(options))

    return start


def test_dtypes(listing):
    start = started(solver_param(net_text(listing)), dtype=lambda rank: (torch.float32, torch.float64)[rank])
    text, _ = refusal(2, start)
    assert "workers differ in the dtype: torch.float32 on rank 0" in text


def test_options(listing):
    start = started(solver_param(net_text(listing)), options=lambda rank: DistributeOptions(sync_bn=rank == 1))
    text, _ = refusal(2, start)
    assert "workers differ in the options, line 2: sync_bn: False on rank 0" in text


def test_plans(listing):
    start = started(solver_param(net_text(listing)), scheme=lambda rank: (Scheme.RING, Scheme.SERVER)[rank])
    text, _ = refusal(2, start)
    assert "workers differ in the communication plan, line " in text
    assert "give all workers the plan that one of them has made" in text


def test_parameters(listing):
    def start(transport):
        solver, _ = built(solver_param(net_text(listing)))
        if transport.rank == 1:
            solver.net.params["fc2"][0].data[0, 3] += 1e-14
        distribute(solver, transport, plan_for(solver, transport.size))

    text, ranks = refusal(3, start)
    assert re.search(r"parameters \(checksums\), line 3: fc2/0 -?0x[0-9a-f]+ on ranks 0 and 2", text)
    assert "let all workers start from the same files" in text
    assert ranks == (1,)


@pytest.mark.parametrize(
    ("owner", "name", "what"), [(poseidon, "__version__", "Poseidon"), (torch, "__version__", "PyTorch")]
)
def test_versions(monkeypatch, owner, name, what):
    """Threads of one process share their versions: here they are read while only one worker runs."""
    facts = {}
    for rank, version in enumerate(("1.0", "1.1")):
        monkeypatch.setattr(owner, name, version)
        facts[rank] = version_facts()
    text, _ = refusal(2, lambda transport: check_facts(facts[transport.rank], Roundtable(transport)))
    assert f"workers differ in the version of {what}: 1.0 on rank 0" in text
    assert "1.1 on rank 1" in text


def test_long_lines_are_cut_and_missing_ones_said():
    texts = ["same\n" + "x" * 500, "same"]
    text, _ = refusal(
        2, lambda transport: check_facts([Fact("poem", texts[transport.rank], "rhyme")], Roundtable(transport))
    )
    assert f"in the poem, line 2: {'x' * 120}… on rank 0" in text
    assert "; nothing on rank 1" in text
    assert text.endswith("; rhyme")


def test_a_difference_at_the_end_of_a_long_line():
    """Shown alike, but not alike: the tail tells."""
    texts = ["x" * 500 + "a", "x" * 500 + "b"]
    text, _ = refusal(
        2, lambda transport: check_facts([Fact("poem", texts[transport.rank], "rhyme")], Roundtable(transport))
    )
    assert f"in the poem: …{'x' * 60}a on rank 0" in text
    assert f"; …{'x' * 60}b on rank 1" in text
