"""Caffe's messages under the name pycaffe gives them."""

from __future__ import annotations

from caffe.proto import caffe_pb2

__all__ = ["caffe_pb2"]
