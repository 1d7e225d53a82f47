"""A net built for a command, with Caffe's log of the building."""

from __future__ import annotations

import argparse

import torch
from rich.console import Console

from poseidon.cli.command import listed
from poseidon.cli.devices import device_text
from poseidon.cli.log import CommandLog
from poseidon.net import Net
from poseidon.net.net import phase_of
from poseidon.solver.net_log import built_lines, filter_lines, planned_lines
from poseidon.spec import caffe_pb2, read_net


def build_net(model: str, phase: str, found: argparse.Namespace, device: torch.device, log: CommandLog | None) -> Net:
    """The net of a prototxt in the phase, level and stages the flags give."""
    source = read_net(model)
    stages = listed(found.stage)
    if log is not None:
        state = caffe_pb2.NetState(phase=phase_of(phase), level=found.level, stage=[*source.net.state.stage, *stages])
        log.write([*filter_lines(source, state), *planned_lines(source, state)])
    net = Net(source, phase=phase, level=found.level, stages=stages, device=device)
    if log is not None:
        log.write(built_lines(net))
    return net


def show_net(net: Net, shown: Console) -> None:
    """The net in one line, for people."""
    num_params = sum(entry.value.numel() for entry in net.learnable)
    shown.print(f"net {net.name!r}: {num_params:,} parameters, on {device_text(net.device)}")
