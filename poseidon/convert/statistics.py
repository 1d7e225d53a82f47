"""The fixed statistics of a BatchNorm layer: its blobs are sums and the factor they were gathered with."""

from __future__ import annotations

import numpy as np

from poseidon.net.layer import Layer


def mean_and_variance(layer: Layer) -> tuple[np.ndarray, np.ndarray]:
    """Per channel, float64; zeros where nothing has been gathered yet."""
    mean, variance, factor = (layer.param(index).detach().cpu().double().numpy() for index in range(3))
    divisor = float(factor[0]) or np.inf
    return mean / divisor, variance / divisor
