"""Caffe's messages, enums and constants: those of `poseidon.spec.caffe_pb2`, for `google.protobuf` to work on."""

from typing import Any

from poseidon.spec import caffe_pb2 as _schema
from poseidon.spec.caffe_pb2 import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """What a star does not bring: descriptors such as _NETPARAMETER."""
    return getattr(_schema, name)
