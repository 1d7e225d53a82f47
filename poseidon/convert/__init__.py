"""Out of Caffe, and in: nets as ONNX, PyTorch, TorchScript, safetensors and HDF5, and PyTorch and ONNX as nets.

table.py      layer type → how it is written: where to add one
export.py     a net into a file, and the check that both compute the same
to_onnx/      what is needed for ONNX            to_torch/   what is needed for PyTorch
to_caffe/     the other direction
"""
