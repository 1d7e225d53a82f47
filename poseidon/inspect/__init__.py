"""What is in a file: nets, weights, solver states, means, databases, HDF5, safetensors, ONNX.

    path -> recognise (by content) -> Contents (parts with arrays, records) -> table, JSON, or a difference of two

Files may be damaged or made to harm: sizes are bounded, nothing in a file is executed, no link out of it is followed.
"""

from __future__ import annotations

from poseidon.inspect.contents import Array, Contents, Part, Record, open_contents
from poseidon.inspect.difference import Difference, compare
from poseidon.inspect.recognise import Kind, recognise
from poseidon.inspect.statistics import Statistics, statistics_of

__all__ = [
    "Array",
    "Contents",
    "Difference",
    "Kind",
    "Part",
    "Record",
    "Statistics",
    "compare",
    "open_contents",
    "recognise",
    "statistics_of",
]
