"""Small nets for the tests of `import caffe`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import caffe

NUM_CLASSES = 13

# Random data, constant labels, a convolution and an inner product whose top has a name of its own.
SIMPLE = f"""
name: 'simple' force_backward: true
layer {{ name: 'data' type: 'DummyData' top: 'data' top: 'label'
  dummy_data_param {{
    num: 5 channels: 2 height: 3 width: 4
    num: 5 channels: 1 height: 1 width: 1
    data_filler {{ type: 'gaussian' std: 1 }} data_filler {{ type: 'constant' value: 3 }} }} }}
layer {{ name: 'conv' type: 'Convolution' bottom: 'data' top: 'conv'
  param {{ decay_mult: 1 }} param {{ decay_mult: 0 }}
  convolution_param {{ num_output: 11 kernel_size: 2 pad: 3
    weight_filler {{ type: 'gaussian' std: 1 }} bias_filler {{ type: 'constant' value: 2 }} }} }}
layer {{ name: 'ip' type: 'InnerProduct' bottom: 'conv' top: 'ip_blob'
  inner_product_param {{ num_output: {NUM_CLASSES}
    weight_filler {{ type: 'gaussian' std: 2.5 }} bias_filler {{ type: 'constant' value: -3 }} }} }}
layer {{ name: 'loss' type: 'SoftmaxWithLoss' bottom: 'ip_blob' bottom: 'label' top: 'loss' }}
"""


def write(folder: Path, text: str, name: str = "net.prototxt") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def build(folder: Path, text: str, phase: int = caffe.TEST, **options) -> caffe.Net:
    return caffe.Net(write(folder, text), phase, **options)


def equal_params(one: caffe.Net, other: caffe.Net) -> bool:
    return all(
        np.array_equal(mine.data, theirs.data)
        for name in one.params
        for mine, theirs in zip(one.params[name], other.params[name], strict=True)
    )
