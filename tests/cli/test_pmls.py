"""PMLS-Caffe's flags: each is translated and told, or refused with the reason and what to use instead."""

from __future__ import annotations

import pytest

from poseidon.cli import PMLS, POSEIDON, parse, pmls_main
from poseidon.cli.pmls import NAMES, translate
from poseidon.errors import UsageError
from tests.cli.nets import write_case


def translated(words: str) -> tuple[list[str], list[str]]:
    told: list[str] = []
    return translate(words.split(), told.append), told


# As PMLS's own scripts write them, and what its documentation says that they do.
CASES = {
    "--table_staleness=2": ["--staleness=2"],
    "-table_staleness 2": ["--staleness=2"],
    "--table-staleness 0 --solver=s": ["--solver=s", "--staleness=0"],
    "--consistency_model=SSP": ["--consistency=ssp", "--staleness=0"],
    "--consistency_model=ssppush --table_staleness=1": ["--consistency=ssp-push", "--staleness=1"],
    "--consistency_model SSPAggr --table_staleness 3": [
        "--consistency=ssp-managed",
        "--staleness=3",
        "--bandwidth-limit=40mbit",  # PMLS's default
    ],
    "--consistency_model SSPAggr --table_staleness 3 --bandwidth_limit 1gbit": [
        "--bandwidth_limit",
        "1gbit",
        "--consistency=ssp-managed",
        "--staleness=3",
    ],
    "--svb=false": ["--scheme=server"],
    "--nosvb": ["--scheme=server"],
    "--svb": [],
    "--svb=true --snapshot x": ["--snapshot", "x"],
    "--num_rows_per_table=256": [],
    "--client_bandwidth_mbps=40": [],  # only SSPAggr looks at it
    "--consistency_model=SSPAggr --client_bandwidth_mbps=40 --server_bandwidth_mbps=40": [
        "--consistency=ssp-managed",
        "--bandwidth-limit=40mbit",
        "--staleness=0",
    ],
    "--update_sort_policy=FIFO": [],
    "--consistency_model=SSPAggr --update_sort_policy=RelativeMagnitude --row_oplog_type=3": [
        "--consistency=ssp-managed",
        "--row-order=importance",
        "--half-rows",
        "--staleness=0",
        "--bandwidth-limit=40mbit",
    ],
    "--row_oplog_type=sparse_vector": [],
    "--stats_path=out/stats": ["--stats=out/stats.yaml"],
    "--stats_path=s.yaml": ["--stats=s.yaml"],
    "--bg_idle_milli=10": [],
    "--snapshot_clock=0 --resume_clock=-1": [],
    "--gpu 0,1 --workers 2": ["--gpu", "0,1", "--workers", "2"],
}


@pytest.mark.parametrize("words", CASES)
def test_translated(words):
    found, told = translated(words)
    assert sorted(found) == sorted(CASES[words])
    for name in NAMES:
        is_given = f"{name}=" in words.replace("-", "_").replace(" ", "=") or (name == "svb" and "svb" in words)
        assert any(line.startswith(f"--{name}=") for line in told) == is_given


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--bg_idle_milli=2", "there is nothing to tune"),
        ("--snapshot_clock=100", "use snapshot: N in the solver"),
        ("--resume_clock=100", r"use --snapshot=FILE\.solverstate"),
        ("--consistency_model=BSP", "is one of SSP, SSPPush, SSPAggr, got 'BSP'"),
        ("--table_staleness=-1", "whole number of at least 0, got '-1'"),
        ("--table_staleness", "needs a value"),
        ("--num_rows_per_table=abc", "whole number of at least 1, got 'abc'"),
        ("--svb=perhaps", "true or false, got 'perhaps'"),
        ("--row_oplog_type=7", "one of dense, sparse"),
        ("--consistency_model=SSPAggr --update_sort_policy=x", "one of RelativeMagnitude, Random, FIFO, FixedOrder"),
        (
            "--consistency_model=SSPAggr --client_bandwidth_mbps=40 --server_bandwidth_mbps=80",
            "give --bandwidth-limit=RATE instead of both",
        ),
    ],
)
def test_refused_with_the_reason(words, reason):
    with pytest.raises(UsageError, match=reason):
        translated(words)


@pytest.mark.parametrize("program", [PMLS, POSEIDON], ids=lambda program: program.name)
def test_the_command_line_takes_them(program, capsys):
    words = "--svb=true train --solver=s --workers=2 --table_staleness=2 --consistency_model=SSP --num_rows_per_table=1"
    _, found = parse(program, words.split())
    assert (found.staleness, found.consistency, found.program) == (2, "ssp", program.name)
    assert "--table_staleness" not in " ".join(found.words), "workers are started with our words"
    assert f"{program.name}: note: --table_staleness=2 is --staleness=2 here" in capsys.readouterr().err


def test_caffe_main_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_case(tmp_path, "max_iter: 2 snapshot_after_train: false")
    assert pmls_main(["train", "--solver=solver.prototxt", "--svb", "--num_rows_per_table=1"]) == 0
    assert "Optimization Done." in capsys.readouterr().err


def test_what_pmls_does_without_a_bandwidth_is_told():
    _, told = translated("--consistency_model=SSPAggr")
    assert told[-1] == (
        "--consistency_model=SSPAggr has a bandwidth of 40 Mbit/s in PMLS: --bandwidth-limit=40mbit here"
    )
