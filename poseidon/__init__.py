"""Poseidon: Caffe and PyTorch networks, trained on the machines people really have."""

from __future__ import annotations

__version__ = "0.1.0"
