"""upgrade: nets and solvers of old formats, as text or binary, in the current one, as Caffe's tools write them.

    net      text or binary: V0 and V1 layers, old data transformations, input fields, BatchNorm's statistics
    solver   text: the enum solver_type

What an old net says that the current format has no place for is dropped, and told.
"""

from __future__ import annotations

from dataclasses import dataclass

from poseidon.spec import (
    needs_upgrade,
    parse,
    read_binary,
    upgrade_net,
    upgrade_solver,
)
from poseidon.spec.caffe_pb2 import NetParameter, SolverParameter
from poseidon.spec.files import read_text


@dataclass(frozen=True, slots=True)
class Upgraded:
    """A net or solver in the current format. `changed`: it was in an old one; `problems`: what was dropped."""

    message: NetParameter | SolverParameter
    changed: bool
    problems: tuple[str, ...] = ()


def is_text(path: str) -> bool:
    """Whether a file looks like prototxt: the tags of binary fields are no characters of text."""
    with open(path, "rb") as file:
        head = file.read(256)
    return all(byte >= 0x20 or byte in b"\t\r\n" for byte in head)


def upgraded_net(path: str, *, binary: bool) -> Upgraded:
    """The net in a prototxt, or with its weights in a binary file."""
    net = read_binary(path, NetParameter) if binary else parse(read_text(path), NetParameter(), path)
    is_old = needs_upgrade(net)
    return Upgraded(net, is_old, upgrade_net(net, lambda index: f"{path}: layer {index}").problems)


def upgraded_solver(path: str) -> Upgraded:
    """The solver in a prototxt."""
    solver = parse(read_text(path), SolverParameter(), path)
    return Upgraded(solver, upgrade_solver(solver, path))
