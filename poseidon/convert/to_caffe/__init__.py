"""Into Caffe: PyTorch modules and ONNX graphs as prototxt and caffemodel, for what Caffe's layers can express."""
