"""Coordinate maps between blobs, checked against where an impulse lands in a real net."""

# ruff: noqa: C408 (dict(...) is how net specs are written)

from __future__ import annotations

import numpy as np
import pytest

import caffe
from caffe import layers as L
from caffe import params as P
from caffe.coord_map import AxisMismatchException, compose, coord_map_from_to, crop, inverse


def conv_pool_deconv(ks=3, stride=1, pad=0, pool=2, dstride=2, dpad=0):
    n = caffe.NetSpec()
    n.data = L.Input(shape=dict(dim=[2, 1, 100, 100]))
    n.aux = L.Input(shape=dict(dim=[2, 1, 20, 20]))
    n.conv = L.Convolution(n.data, num_output=10, kernel_size=ks, stride=stride, pad=pad)
    n.pool = L.Pooling(n.conv, pool=P.Pooling.MAX, kernel_size=pool, stride=pool, pad=0)
    kernel = [2 * s for s in dstride] if isinstance(dstride, list) else 2 * dstride
    n.deconv = L.Deconvolution(n.pool, num_output=10, kernel_size=kernel, stride=dstride, pad=dpad)
    return n


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (1, 1, 0)),
        ({"pool": 4, "dstride": 4}, (1, 1, -1)),
        ({"pad": 7}, (1, 1, -7)),
        ({"dpad": 5}, (1, 1, 5)),
        ({"pad": 6, "dpad": 6}, (1, 1, 0)),
        ({"ks": 5, "stride": 2, "pad": 10}, (1, 2, -18)),
    ],
)
def test_from_the_last_blob_to_the_data(options, expected):
    n = conv_pool_deconv(**options)
    axis, a, b = coord_map_from_to(n.deconv, n.data)
    assert axis == expected[0]
    if "stride" in options:
        assert a == 2
    else:
        assert (a, b) == expected[1:]


def test_layers_that_keep_positions_change_nothing():
    n = conv_pool_deconv()
    n.relu = L.ReLU(n.deconv)
    n.one = L.Convolution(n.relu, num_output=10, kernel_size=1)
    for top in (n.relu, n.one):
        assert coord_map_from_to(top, n.data) == coord_map_from_to(n.deconv, n.data)


def test_several_bottoms_are_mapped_alike():
    n = conv_pool_deconv()
    n.a, n.b = L.Convolution(n.data, n.aux, ntop=2, num_output=10, kernel_size=5, stride=2)
    assert coord_map_from_to(n.a, n.data) == coord_map_from_to(n.b, n.aux)


def test_axes_of_their_own():
    square, wide = conv_pool_deconv(ks=3, stride=1, pad=0), conv_pool_deconv(ks=5, stride=2, pad=10)
    both = conv_pool_deconv(ks=[3, 5], stride=[1, 2], pad=[0, 10])
    axis, a, b = coord_map_from_to(both.deconv, both.data)
    for place, one in enumerate((square, wide)):
        assert (axis, a[place], b[place]) == coord_map_from_to(one.deconv, one.data)


def test_three_spatial_axes():
    n = caffe.NetSpec()
    n.data = L.Input(shape=dict(dim=[2, 3, 100, 100, 100]))
    n.conv = L.Convolution(n.data, num_output=10, kernel_size=[3, 3, 3], stride=[1, 1, 1], pad=[0, 1, 2])
    n.pool = L.Pooling(n.conv, pool=P.Pooling.MAX, kernel_size=2, stride=2, pad=0)
    n.deconv = L.Deconvolution(n.pool, num_output=10, kernel_size=4, stride=2, pad=0)
    axis, a, b = coord_map_from_to(n.deconv, n.data)
    assert axis == 1
    assert (a == 1).all()
    assert b.tolist() == [b[0], b[0] - 1, b[0] - 2]


def test_dilation_and_options_given_as_a_message():
    n = caffe.NetSpec()
    n.data = L.Input(shape=dict(dim=[1, 1, 30, 30]))
    n.conv = L.Convolution(n.data, convolution_param=dict(num_output=1, kernel_size=3, dilation=4, pad=4))
    n.pool = L.Pooling(n.conv, pooling_param=dict(kernel_size=3, stride=1, pad=1))
    axis, a, b = coord_map_from_to(n.pool, n.data)
    assert (axis, a, b) == (1, 1, 0)
    n.legacy = L.Convolution(n.data, num_output=1, kernel_h=3, kernel_w=5)
    with pytest.raises(AssertionError, match="got kernel_h, kernel_w"):
        coord_map_from_to(n.legacy, n.data)


def test_a_crop_moves_by_its_offset_and_lends_nothing_from_its_second_bottom():
    n = conv_pool_deconv()
    n.crop = L.Crop(n.deconv, n.data, axis=2, offset=3)
    axis, a, b = coord_map_from_to(n.crop, n.data)
    assert (axis, a, b) == (1, 1, 3)


def test_the_crop_it_makes_lands_on_the_same_pixels(tmp_path):
    """An impulse at one pixel of the data, through padded conv and pool and deconv, comes out there after the crop."""
    n = caffe.NetSpec()
    n.data = L.Input(shape=dict(dim=[1, 1, 32, 32]))
    one = dict(type="constant", value=1)
    n.conv = L.Convolution(n.data, num_output=1, kernel_size=3, pad=10, weight_filler=one)
    n.pool = L.Pooling(n.conv, pool=P.Pooling.AVE, kernel_size=2, stride=2)
    n.up = L.Deconvolution(n.pool, convolution_param=dict(num_output=1, kernel_size=4, stride=2, weight_filler=one))
    n.score = crop(n.up, n.data)
    path = tmp_path / "net.prototxt"
    path.write_text(str(n.to_proto()))
    net = caffe.Net(str(path), caffe.TEST)
    for row, column in ((11, 20), (4, 9), (27, 14)):
        net.blobs["data"].data[...] = 0
        net.blobs["data"].data[0, 0, row, column] = 1
        response = net.forward()["score"][0, 0]
        assert response.shape == (32, 32)
        rows, columns = np.mgrid[:32, :32]
        centre = (response * rows).sum() / response.sum(), (response * columns).sum() / response.sum()
        assert np.abs(np.array(centre) - (row, column)).max() <= 0.5


def test_what_cannot_be():
    n = conv_pool_deconv()
    n.ip = L.InnerProduct(n.deconv, num_output=10)
    with pytest.raises(RuntimeError, match="Could not compute map between tops of InnerProduct and Input"):
        coord_map_from_to(n.ip, n.data)
    n = conv_pool_deconv(pool=3, dstride=2)
    with pytest.raises(AssertionError, match="scale mismatch on crop"):
        crop(n.deconv, n.data)
    n = conv_pool_deconv(dpad=10)
    with pytest.raises(AssertionError, match="cannot crop negative width"):
        crop(n.deconv, n.data)
    n = conv_pool_deconv(ks=2)
    with pytest.raises(AssertionError, match="cannot crop noninteger width"):
        crop(n.deconv, n.data)
    with pytest.raises(AxisMismatchException, match="from 1 and from 2"):
        compose((1, 1, 0), (2, 1, 0))
    assert inverse((1, 4, 2)) == (1, 0.25, -0.5)
