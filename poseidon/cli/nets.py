"""A net built for a command, with Caffe's log of the building."""

from __future__ import annotations

import argparse

import torch

from poseidon.cli.command import listed
from poseidon.cli.log import CommandLog
from poseidon.net import Net
from poseidon.net.net import phase_of
from poseidon.solver.net_log import built_lines, filter_lines, planned_lines
from poseidon.spec import caffe_pb2, read_net


def build_net(model: str, phase: str, found: argparse.Namespace, device: torch.device, log: CommandLog) -> Net:
    """The net of a prototxt in the phase, level and stages the flags give."""
    source = read_net(model)
    stages = listed(found.stage)
    state = caffe_pb2.NetState(phase=phase_of(phase), level=found.level, stage=[*source.net.state.stage, *stages])
    log.write([*filter_lines(source, state), *planned_lines(source, state)])
    net = Net(source, phase=phase, level=found.level, stages=stages, device=device)
    log.write(built_lines(net))
    return net
