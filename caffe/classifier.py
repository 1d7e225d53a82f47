"""Classifier: a Net for images, which are resized, cropped and preprocessed on their way in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caffe.images import oversample as ten_crops
from caffe.images import resize_image
from caffe.net import FilePath, Net
from caffe.transformer import Transformer
from poseidon.spec.caffe_pb2 import TEST


class Classifier(Net):
    """`image_dims` is the size images are resized to before they are cropped (default: that of the net's input); the
    rest is the Transformer's."""

    def __init__(
        self,
        model_file: FilePath,
        pretrained_file: FilePath | None = None,
        image_dims: Sequence[int] | None = None,
        mean: np.ndarray | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
    ) -> None:
        super().__init__(model_file, TEST, weights=pretrained_file)
        self.transformer = image_transformer(self, mean, input_scale, raw_scale, channel_swap)
        self.crop_dims = np.array(self.blobs[self.inputs[0]].shape[2:])
        self.image_dims = self.crop_dims if image_dims is None or len(image_dims) == 0 else image_dims

    def predict(self, inputs: Sequence[np.ndarray], oversample: bool = True) -> np.ndarray:
        """One row of outputs per image (height × width × channels); with `oversample` the mean over ten crops, else
        those of the central crop."""
        images = np.stack([resize_image(image, self.image_dims) for image in inputs])
        if oversample:
            crops = ten_crops(images, self.crop_dims)
        else:
            top, left = ((np.array(self.image_dims) - self.crop_dims) / 2).astype(int)
            crops = images[:, top : top + self.crop_dims[0], left : left + self.crop_dims[1]]
        name = self.inputs[0]
        prepared = np.stack([self.transformer.preprocess(name, crop) for crop in crops])
        predictions = self.forward_all(None, **{name: prepared})[self.outputs[0]]
        if oversample:
            predictions = predictions.reshape(len(predictions) // 10, 10, -1).mean(1)
        return predictions


def image_transformer(
    net: Net,
    mean: np.ndarray | None,
    input_scale: float | None,
    raw_scale: float | None,
    channel_swap: Sequence[int] | None,
) -> Transformer:
    """A Transformer for images into the net's first input."""
    name = net.inputs[0]
    transformer = Transformer({name: net.blobs[name].shape})
    transformer.set_transpose(name, (2, 0, 1))
    if mean is not None:
        transformer.set_mean(name, mean)
    if input_scale is not None:
        transformer.set_input_scale(name, input_scale)
    if raw_scale is not None:
        transformer.set_raw_scale(name, raw_scale)
    if channel_swap is not None:
        transformer.set_channel_swap(name, channel_swap)
    return transformer
