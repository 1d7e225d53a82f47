"""The `caffe` module as pycaffe users know it: a thin face over poseidon."""

from __future__ import annotations

from poseidon.net.layers.python import PythonLayerBase as Layer

__all__ = ["Layer"]
