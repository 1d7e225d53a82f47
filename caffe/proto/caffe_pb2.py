"""Caffe's messages, enums and constants: those of `poseidon.spec.caffe_pb2`, for `google.protobuf` to work on."""

from poseidon.spec.caffe_pb2 import *  # noqa: F403
from poseidon.spec.caffe_pb2 import DESCRIPTOR as DESCRIPTOR
