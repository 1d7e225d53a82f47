"""Layers in Python for the case nets beside this file."""

from __future__ import annotations

import numpy as np

import caffe


class Mix(caffe.Layer):
    """y = k · a · b and z = a + b: reads the bottoms again in backward."""

    def setup(self, bottom, top):
        self.k = float(self.param_str)

    def reshape(self, bottom, top):
        for blob in top:
            blob.reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = self.k * bottom[0].data * bottom[1].data
        top[1].data[...] = bottom[0].data + bottom[1].data

    def backward(self, top, propagate_down, bottom):
        for i in (0, 1):
            if propagate_down[i]:
                bottom[i].diff[...] = self.k * bottom[1 - i].data * top[0].diff + top[1].diff


class Gain(caffe.Layer):
    """y = tanh(g · x) with a learned g per column: reads its top again in backward."""

    def setup(self, bottom, top):
        self.blobs.add_blob(bottom[0].shape[1])
        self.blobs[0].data[...] = np.linspace(0.5, 1.5, bottom[0].channels)

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = np.tanh(self.blobs[0].data * bottom[0].data)

    def backward(self, top, propagate_down, bottom):
        slope = top[0].diff * (1 - top[0].data ** 2)
        self.blobs[0].diff[...] += (slope * bottom[0].data).sum(0)
        if propagate_down[0]:
            bottom[0].diff[...] = slope * self.blobs[0].data


class Double(caffe.Layer):
    """In place: top and bottom are one blob."""

    def reshape(self, bottom, top):
        assert top[0] is bottom[0]

    def forward(self, bottom, top):
        top[0].data[...] *= 2

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] *= 2


class Counter(caffe.Layer):
    """A data layer: how many batches it has given."""

    def setup(self, bottom, top):
        self.dims = [int(word) for word in self.param_str.split(",")]
        self.given = 0

    def reshape(self, bottom, top):
        top[0].reshape(*self.dims)

    def forward(self, bottom, top):
        self.given += 1
        top[0].data[...] = self.given


class Sink(caffe.Layer):
    """No top: keeps what it saw."""

    def reshape(self, bottom, top):
        pass

    def forward(self, bottom, top):
        self.seen = bottom[0].data.copy()
