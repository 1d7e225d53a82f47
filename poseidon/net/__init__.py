"""Caffe nets as PyTorch modules."""

from __future__ import annotations

from poseidon.net.net import Net, NetOutputs
from poseidon.net.stepwise import Stepwise

__all__ = ["Net", "NetOutputs", "Stepwise"]
