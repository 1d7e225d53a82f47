"""A net together with where it came from, so that errors can name the file and line of a layer."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from poseidon.spec.caffe_pb2 import NetParameter, SolverParameter
from poseidon.spec.files import read_text
from poseidon.spec.text import parse_located
from poseidon.spec.upgrade import INPUT_ORIGIN, Upgrade, upgrade_net, upgrade_solver

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NetSource:
    """A net in the current format, its file, and the line of each layer (0: unknown)."""

    net: NetParameter
    filename: str
    lines: tuple[int, ...]

    def place(self, index: int) -> str:
        """`file:line` of a layer, or just the file."""
        return place(self.filename, self.lines[index])


def place(filename: str, line: int) -> str:
    return f"{filename}:{line}" if line else filename


def read_net(path: str | os.PathLike[str]) -> NetSource:
    """The net in a prototxt file."""
    return parse_net(read_text(path), os.fspath(path))


def parse_net(text: str, filename: str = "<text>") -> NetSource:
    """The net in a prototxt; `filename` is for messages."""
    net = NetParameter()
    found = parse_located(text, net, filename)
    return _upgraded(net, filename, found.get("layers") or found.get("layer") or [], (found.get("input") or [0])[0])


def net_source(net: NetParameter, filename: str = "<net>") -> NetSource:
    """A net made in memory; its layers have no lines."""
    copy = NetParameter()
    copy.CopyFrom(net)
    return _upgraded(copy, filename, [0] * (len(net.layers) or len(net.layer)), 0)


def _upgraded(net: NetParameter, filename: str, lines: list[int], input_line: int) -> NetSource:
    def line(origin: int) -> int:
        return input_line if origin == INPUT_ORIGIN else lines[origin]

    upgrade = upgrade_net(net, lambda origin: place(filename, line(origin)))
    log_problems(upgrade)
    return NetSource(net, filename, tuple(line(origin) for origin in upgrade.origins))


def log_problems(upgrade: Upgrade) -> None:
    """Warn about what an upgrade had to drop."""
    for problem in upgrade.problems:
        _log.warning("%s", problem)


def read_solver(path: str | os.PathLike[str]) -> SolverParameter:
    """The solver in a prototxt file. Snapshots are named after the file unless it says otherwise, as in Caffe."""
    solver = parse_solver(read_text(path), os.fspath(path))
    if not solver.HasField("snapshot_prefix"):
        solver.snapshot_prefix = str(Path(path).with_suffix(""))
    elif Path(solver.snapshot_prefix).is_dir():
        solver.snapshot_prefix = str(Path(solver.snapshot_prefix) / Path(path).stem)
    return solver


def parse_solver(text: str, filename: str = "<text>") -> SolverParameter:
    """The solver in a prototxt; `filename` is for messages."""
    solver = SolverParameter()
    found = parse_located(text, solver, filename)
    upgrade_solver(solver, place(filename, found.get("solver_type", [0])[0]))
    return solver
