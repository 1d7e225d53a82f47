"""Features extracted by this process, alone or as one of several workers."""

from __future__ import annotations

import argparse

import torch

from poseidon.cli.devices import device_for
from poseidon.cli.telling import telling
from poseidon.cli.terminal import has_display
from poseidon.data.database import check_new
from poseidon.net import Net
from poseidon.run.extraction import deal_records, divide_cores
from poseidon.run.launcher import accept_signals
from poseidon.run.rendezvous import Place
from poseidon.tools.feature_request import FeatureRequest
from poseidon.tools.features import Deal, extract_features

_SOURCE = "extract_features.cpp"


def extract(found: argparse.Namespace, request: FeatureRequest, place: Place | None) -> int:
    """Builds the net, loads the weights, writes the databases; returns an exit code."""
    if place is not None:
        request = request.of_worker(place.rank)
    with telling(found) as tell:
        for target in request.targets:
            check_new(target)
        device = _device(found, place)
        tell.say(f"{_SOURCE}:54", "Using CPU" if device.type == "cpu" else "Using GPU", "E")
        if device.type != "cpu":
            tell.say(f"{_SOURCE}:55", f"Using Device_id={device.index}", "E")
        if place is not None:
            divide_cores(place)
            accept_signals()
        net = Net(found.net, found.weights, phase="TEST", device=device)
        deal = Deal() if place is None else deal_records(net, place)
        extract_features(net, request, deal, tell)
    if has_display(found):
        for blob, target in zip(request.blobs, request.targets, strict=True):
            print(f"{target}: features of {blob}")
    return 0


def _device(found: argparse.Namespace, place: Place | None) -> torch.device:
    """The CPU, or the GPU that is named; workers of a host take that one and the next ones."""
    if found.device != "GPU":
        return torch.device("cpu")
    offset = place.local_rank or 0 if place is not None else 0
    return device_for(str(found.device_id + offset))
