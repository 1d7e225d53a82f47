"""What Caffe's published notebooks do, each in small: the same calls on small nets and data."""

# ruff: noqa: C408 (dict(...) is how net specs are written)

from __future__ import annotations

import textwrap
from pathlib import Path

import cv2
import h5py
import lmdb
import numpy as np
import pytest
from google.protobuf import text_format

import caffe
from caffe import layers as L
from caffe import params as P
from tests.caffe.nets import write

RNG = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    caffe.set_random_seed(1701)
    yield tmp_path
    monkeypatch.setattr(caffe.settings, "_settings", caffe.settings._Settings())


def stripes(num: int, size: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Images in two classes, horizontal and vertical stripes, with noise: bytes, num × 1 × size × size."""
    labels = np.arange(num) % 2
    rows = np.indices((size, size))
    images = np.stack([rows[label] % 4 < 2 for label in labels])[:, None] * 180
    return (images + RNG.integers(0, 60, images.shape)).astype(np.uint8), labels


def write_lmdb(path: str, images: np.ndarray, labels: np.ndarray) -> str:
    """As scripts write one: a Datum per record, by hand."""
    with lmdb.open(path, map_size=1 << 26) as env, env.begin(write=True) as transaction:
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            datum = caffe.proto.caffe_pb2.Datum()
            datum.channels, datum.height, datum.width = image.shape
            datum.data = image.tobytes()
            datum.label = int(label)
            transaction.put(f"{number:08}".encode("ascii"), datum.SerializeToString())
    return path


def small_lenet(lmdb_path: str, batch_size: int) -> caffe.proto.caffe_pb2.NetParameter:
    n = caffe.NetSpec()
    n.data, n.label = L.Data(
        batch_size=batch_size, backend=P.Data.LMDB, source=lmdb_path, transform_param=dict(scale=1.0 / 255), ntop=2
    )
    n.conv1 = L.Convolution(n.data, kernel_size=3, num_output=6, weight_filler=dict(type="xavier"))
    n.pool1 = L.Pooling(n.conv1, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.fc1 = L.InnerProduct(n.pool1, num_output=16, weight_filler=dict(type="xavier"))
    n.relu1 = L.ReLU(n.fc1, in_place=True)
    n.score = L.InnerProduct(n.relu1, num_output=2, weight_filler=dict(type="xavier"))
    n.loss = L.SoftmaxWithLoss(n.score, n.label)
    return n.to_proto()


DEPLOY = """
    name: "small"
    layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 10 dim: 3 dim: 14 dim: 14 } } }
    layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
            convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
    layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
    layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
            pooling_param { pool: MAX kernel_size: 3 stride: 3 } }
    layer { name: "fc2" type: "InnerProduct" bottom: "pool1" top: "fc2"
            inner_product_param { num_output: 8 weight_filler { type: "xavier" } } }
    layer { name: "relu2" type: "ReLU" bottom: "fc2" top: "fc2" }
    layer { name: "fc3" type: "InnerProduct" bottom: "fc2" top: "fc3"
            inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
    layer { name: "prob" type: "Softmax" bottom: "fc3" top: "prob" }
"""


def deployed(folder: Path) -> caffe.Net:
    file = write(folder, DEPLOY, "deploy.prototxt")
    caffe.Net(file, caffe.TEST).save("model.caffemodel")
    return caffe.Net(file, "model.caffemodel", caffe.TEST)


def picture(name: str = "cat.png", size: tuple[int, int] = (20, 30)) -> str:
    cv2.imwrite(name, RNG.integers(0, 255, (*size, 3), np.uint8))
    return name


# -- classification -------------------------------------------------------------------------------------------------
def test_classification(folder):
    net = deployed(folder)
    mean = RNG.random((3, 20, 20)) * 100
    np.save("mean.npy", mean)
    mu = np.load("mean.npy").mean(1).mean(1)
    transformer = caffe.io.Transformer({"data": net.blobs["data"].data.shape})
    transformer.set_transpose("data", (2, 0, 1))
    transformer.set_mean("data", mu)
    transformer.set_raw_scale("data", 255)
    transformer.set_channel_swap("data", (2, 1, 0))
    net.blobs["data"].reshape(50, 3, 14, 14)
    image = caffe.io.load_image(picture())
    net.blobs["data"].data[...] = transformer.preprocess("data", image)
    output = net.forward()
    probabilities = output["prob"][0]
    assert output["prob"].shape == (50, 5)
    assert probabilities.sum() == pytest.approx(1)
    assert (output["prob"] == probabilities).all()  # the same image fifty times
    assert [(name, blob.data.shape) for name, blob in net.blobs.items()] == [
        ("data", (50, 3, 14, 14)),
        ("conv1", (50, 4, 12, 12)),
        ("pool1", (50, 4, 4, 4)),
        ("fc2", (50, 8)),
        ("fc3", (50, 5)),
        ("prob", (50, 5)),
    ]
    assert [(name, param[0].data.shape, param[1].data.shape) for name, param in net.params.items()] == [
        ("conv1", (4, 3, 3, 3), (4,)),
        ("fc2", (8, 64), (8,)),
        ("fc3", (5, 8), (5,)),
    ]
    filters = net.params["conv1"][0].data.transpose(0, 2, 3, 1)
    tiles = (filters - filters.min()) / (filters.max() - filters.min())
    assert tiles.shape == (4, 3, 3, 3)
    features = net.blobs["conv1"].data[0, :36]
    assert features.min() >= 0
    np.testing.assert_allclose(
        transformer.deprocess("data", net.blobs["data"].data[0]), caffe.io.resize_image(image, (14, 14)), atol=1e-4
    )
    assert probabilities.argsort()[::-1][:5][0] == probabilities.argmax()


def test_the_classifier_class(folder):
    net = deployed(folder)
    mean = np.array([30.0, 60.0, 90.0])
    options = dict(image_dims=(16, 18), mean=mean, raw_scale=255, channel_swap=(2, 1, 0))
    classifier = caffe.Classifier("deploy.prototxt", "model.caffemodel", **options)
    images = [caffe.io.load_image(picture("a.png")), caffe.io.load_image(picture("b.png", (40, 17)))]

    def run(crop):
        blob = crop[:, :, ::-1].transpose(2, 0, 1) * 255 - mean.reshape(3, 1, 1)
        net.blobs["data"].data[...] = blob
        return net.forward()["prob"][0].copy()

    resized = [caffe.io.resize_image(image, (16, 18)) for image in images]
    centre = classifier.predict(images, oversample=False)
    np.testing.assert_allclose(centre, [run(image[1:15, 2:16]) for image in resized], rtol=1e-4)
    ten = classifier.predict(images)
    corners = [(0, 0), (0, 4), (2, 0), (2, 4), (1, 2)]
    for image, row in zip(resized, ten, strict=True):
        crops = [image[y : y + 14, x : x + 14] for y, x in corners]
        crops += [crop[:, ::-1] for crop in crops]
        np.testing.assert_allclose(row, np.mean([run(crop) for crop in crops], axis=0), rtol=1e-4)


# -- learning -------------------------------------------------------------------------------------------------------
def test_learning_in_python_step_by_step(folder):
    train, test = write_lmdb("train_lmdb", *stripes(64)), write_lmdb("test_lmdb", *stripes(40))
    for name, path, size in (("train", train, 16), ("test", test, 20)):
        Path(f"{name}.prototxt").write_text(str(small_lenet(path, size)))
    Path("solver.prototxt").write_text(
        """train_net: "train.prototxt" test_net: "test.prototxt" test_iter: 2 test_interval: 500
           base_lr: 0.02 momentum: 0.9 weight_decay: 0.0005 lr_policy: "inv" gamma: 0.0001 power: 0.75
           display: 100 max_iter: 1000 snapshot: 5000 snapshot_prefix: "lenet" """
    )
    caffe.set_mode_cpu()
    solver = None  # ignore this workaround for lmdb data: two solvers cannot be alive on the same data
    solver = caffe.SGDSolver("solver.prototxt")
    assert next((name, blob.data.shape) for name, blob in solver.net.blobs.items()) == ("data", (16, 1, 12, 12))
    solver.net.forward()
    solver.test_nets[0].forward()
    assert solver.net.blobs["label"].data[:4].tolist() == [0, 1, 0, 1]
    solver.step(1)
    shown = solver.net.params["conv1"][0].diff[:, 0].reshape(2, 3, 3, 3).transpose(0, 2, 1, 3).reshape(6, 9)
    assert shown.any()
    niter, test_interval = 60, 20
    train_loss, test_acc, output = np.zeros(niter), np.zeros(int(np.ceil(niter / test_interval))), []
    for it in range(niter):
        solver.step(1)
        train_loss[it] = solver.net.blobs["loss"].data
        solver.test_nets[0].forward(start="conv1")
        output.append(solver.test_nets[0].blobs["score"].data[:8].copy())
        if it % test_interval == 0:
            correct = 0
            for _ in range(2):
                solver.test_nets[0].forward()
                correct += sum(
                    solver.test_nets[0].blobs["score"].data.argmax(1) == solver.test_nets[0].blobs["label"].data
                )
            test_acc[it // test_interval] = correct / 40
    assert train_loss[-1] < 0.2 < train_loss[0]
    assert test_acc[-1] > 0.9
    assert len(output) == niter
    assert solver.iter == 61


def test_editing_the_solvers_message_and_net_text(folder):
    """A custom net and solver: messages made in Python, written with str, read with text_format."""
    path = write_lmdb("train_lmdb", *stripes(32))
    Path("net.prototxt").write_text("\n".join(["# custom", str(small_lenet(path, 8))]))
    s = caffe.proto.caffe_pb2.SolverParameter()
    s.random_seed = 0xCAFFE
    s.train_net = "net.prototxt"
    s.test_net.append("net.prototxt")
    s.test_interval = 500
    s.test_iter.append(2)
    s.max_iter = 100
    s.type = "Adam"
    s.base_lr = 0.005
    s.momentum = 0.75
    s.lr_policy = "fixed"
    s.display = 1000
    s.snapshot_prefix = "custom"
    s.solver_mode = caffe.proto.caffe_pb2.SolverParameter.CPU
    Path("solver.prototxt").write_text(str(s))
    solver = caffe.get_solver("solver.prototxt")
    assert isinstance(solver, caffe.AdamSolver)
    losses = []
    for _ in range(30):
        solver.step(1)
        losses.append(float(solver.net.blobs["loss"].data))
    assert losses[-1] < losses[0] / 2
    net = caffe.proto.caffe_pb2.NetParameter()
    text_format.Merge(Path("net.prototxt").read_text(), net)
    net.layer[0].data_param.batch_size = 3
    Path("three.prototxt").write_text(text_format.MessageToString(net))
    assert caffe.Net("three.prototxt", caffe.TEST).blobs["data"].data.shape == (3, 1, 12, 12)


# -- fine-tuning ----------------------------------------------------------------------------------------------------
def test_fine_tuning_takes_what_has_the_same_name(folder):
    """A new last layer, frozen features, several solvers side by side, weights saved and compared."""
    path = write_lmdb("train_lmdb", *stripes(64))
    base = small_lenet(path, 16)
    Path("base.prototxt").write_text(str(base))
    pretrained = caffe.Net("base.prototxt", caffe.TRAIN)
    pretrained.save("pretrained.caffemodel")
    tuned = caffe.proto.caffe_pb2.NetParameter()
    tuned.CopyFrom(base)
    for layer in tuned.layer:
        if layer.name == "score":
            layer.name = layer.top[0] = "score_new"
            layer.inner_product_param.num_output = 4
        elif layer.name == "loss":
            layer.bottom[0] = "score_new"
        elif layer.type in ("Convolution", "InnerProduct"):
            del layer.param[:]
            layer.param.add(lr_mult=0, decay_mult=0)
            layer.param.add(lr_mult=0, decay_mult=0)
    Path("tuned.prototxt").write_text(str(tuned))
    Path("solver.prototxt").write_text('train_net: "tuned.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 20')
    solver, scratch = caffe.get_solver("solver.prototxt"), caffe.get_solver("solver.prototxt")
    solver.net.copy_from("pretrained.caffemodel")
    frozen = {name: [b.data.copy() for b in blobs] for name, blobs in solver.net.params.items() if name != "score_new"}
    np.testing.assert_array_equal(frozen["conv1"][0], pretrained.params["conv1"][0].data)
    losses = {}
    for name, one in (("pretrained", solver), ("scratch", scratch)):
        losses[name] = []
        for _ in range(20):
            one.step(1)
            losses[name].append(one.net.blobs["loss"].data.copy())
        one.net.save(f"weights.{name}.caffemodel")
    assert np.array(losses["pretrained"])[-1] < np.array(losses["pretrained"])[0]
    for name, blobs in frozen.items():
        for before, blob in zip(blobs, solver.net.params[name], strict=True):
            np.testing.assert_array_equal(blob.data, before)
    other = caffe.Net("tuned.prototxt", "weights.pretrained.caffemodel", caffe.TEST)
    np.testing.assert_array_equal(other.params["score_new"][0].data, solver.net.params["score_new"][0].data)


# -- net surgery ----------------------------------------------------------------------------------------------------
def test_designing_filters_by_hand(folder):
    net = caffe.Net(
        write(
            folder,
            """name: "convolution"
               input: "data" input_dim: 1 input_dim: 1 input_dim: 100 input_dim: 100
               layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
                       convolution_param { num_output: 3 kernel_size: 5 stride: 1
                         weight_filler { type: "gaussian" std: 0.01 } bias_filler { type: "constant" value: 0 } } }""",
        ),
        caffe.TEST,
    )
    assert (
        f"blobs {list(net.blobs.keys())}\nparams {list(net.params.keys())}" == "blobs ['data', 'conv']\nparams ['conv']"
    )
    image = RNG.random((36, 48)).astype("f4")
    im_input = image[np.newaxis, np.newaxis, :, :]
    net.blobs["data"].reshape(*im_input.shape)
    net.blobs["data"].data[...] = im_input
    net.forward()
    before = net.blobs["conv"].data.copy()
    net.params["conv"][1].data[1] = 1.0
    net.forward()
    np.testing.assert_allclose(net.blobs["conv"].data[0, 1], before[0, 1] + 1, rtol=1e-5)
    sobel = np.array((-1, -2, 0, 2, 1)).reshape((5, 1)) * np.ones((1, 5))
    net.params["conv"][0].data[2, 0] = sobel
    net.params["conv"][0].data[0, 0, 2, 2] = 0
    net.params["conv"][1].data[...] = 0
    net.forward()
    patch = image[10:15, 20:25]
    assert net.blobs["conv"].data[0, 2, 10, 20] == pytest.approx((patch * sobel).sum(), rel=1e-3, abs=1e-4)


def test_inner_products_become_convolutions(folder):
    net = deployed(folder)
    params = ["fc2", "fc3"]
    fc_params = {name: (net.params[name][0].data, net.params[name][1].data) for name in params}
    conv_text = DEPLOY.replace("dim: 10 dim: 3 dim: 14 dim: 14", "dim: 1 dim: 3 dim: 14 dim: 14")
    for name, size, outputs in (("fc2", 4, 8), ("fc3", 1, 5)):
        conv_text = conv_text.replace(
            f'name: "{name}" type: "InnerProduct"', f'name: "{name}-conv" type: "Convolution"'
        ).replace(
            f"inner_product_param {{ num_output: {outputs} weight_filler",
            f"convolution_param {{ num_output: {outputs} kernel_size: {size} weight_filler",
        )
    full = caffe.Net(write(folder, conv_text, "full_conv.prototxt"), "model.caffemodel", caffe.TEST)
    params_full_conv = ["fc2-conv", "fc3-conv"]
    conv_params = {name: (full.params[name][0].data, full.params[name][1].data) for name in params_full_conv}
    for name, conv_name in zip(params, params_full_conv, strict=True):
        conv_params[conv_name][0].flat = fc_params[name][0].flat
        conv_params[conv_name][1][...] = fc_params[name][1]
    full.save("full_conv.caffemodel")
    image = RNG.random((3, 14, 14)).astype("f4")
    net.blobs["data"].data[...] = image
    full.blobs["data"].data[...] = image
    np.testing.assert_allclose(full.forward()["prob"][0, :, 0, 0], net.forward()["prob"][0], rtol=1e-4)
    out = full.forward_all(data=np.asarray([image]))
    assert out["prob"][0].argmax(axis=0).shape == (1, 1)
    full.blobs["data"].reshape(1, 3, 29, 29)
    assert full.forward()["prob"].shape == (1, 5, 6, 6)
    again = caffe.Net("full_conv.prototxt", "full_conv.caffemodel", caffe.TEST)
    np.testing.assert_array_equal(again.params["fc2-conv"][0].data, full.params["fc2-conv"][0].data)


# -- many labels per image, from a data layer in Python ---------------------------------------------------------------
MULTILABEL = """
    import json
    import numpy as np
    import caffe

    class PascalMultilabelDataLayerSync(caffe.Layer):
        def setup(self, bottom, top):
            self.top_names = ["data", "label"]
            params = eval(self.param_str)
            assert "batch_size" in params, "Params must include batch size."
            self.batch_size = params["batch_size"]
            self.loader = Loader(params)
            top[0].reshape(self.batch_size, 3, params["im_shape"][0], params["im_shape"][1])
            top[1].reshape(self.batch_size, 4)

        def forward(self, bottom, top):
            for itt in range(self.batch_size):
                im, multilabel = self.loader.next()
                top[0].data[itt, ...] = im
                top[1].data[itt, ...] = multilabel

        def reshape(self, bottom, top):
            pass

        def backward(self, top, propagate_down, bottom):
            pass

    class Loader(object):
        def __init__(self, params):
            self.shape = params["im_shape"]
            self.random = np.random.RandomState(3)

        def next(self):
            multilabel = self.random.randint(0, 2, 4)
            im = np.zeros((3,) + tuple(self.shape), np.float32)
            half = self.shape[0] // 2
            for k, present in enumerate(multilabel):  # each label lights a quarter of the image
                im[:, (k // 2) * half:][:, :half][:, :, (k % 2) * half:][:, :, :half] = present
            return im + 0.1 * self.random.rand(*im.shape), multilabel
"""


def test_multilabel_classification_with_a_python_data_layer(folder):
    (folder / "pascal_layers.py").write_text(textwrap.dedent(MULTILABEL))

    def text(split, batch):
        params = dict(batch_size=batch, im_shape=[8, 8], split=split)
        n = caffe.NetSpec()
        n.data, n.label = L.Python(
            module="pascal_layers", layer="PascalMultilabelDataLayerSync", ntop=2, param_str=str(params)
        )
        n.fc = L.InnerProduct(n.data, num_output=16, weight_filler=dict(type="xavier"))
        n.relu = L.ReLU(n.fc, in_place=True)
        n.score = L.InnerProduct(n.relu, num_output=4, weight_filler=dict(type="xavier"))
        n.loss = L.SigmoidCrossEntropyLoss(n.score, n.label)
        return str(n.to_proto())

    Path("trainnet.prototxt").write_text(text("train", 16))
    Path("valnet.prototxt").write_text(text("val", 20))
    Path("solver.prototxt").write_text(
        """train_net: "trainnet.prototxt" test_net: "valnet.prototxt" test_iter: 2 test_interval: 1000
           base_lr: 0.01 momentum: 0.9 lr_policy: "fixed" max_iter: 200 display: 1000"""
    )
    solver = caffe.SGDSolver("solver.prototxt")
    solver.test_nets[0].share_with(solver.net)
    solver.step(1)

    def hamming_distance(gt, est):
        return sum(1 for (g, e) in zip(gt, est, strict=True) if g == e) / float(len(gt))

    def check_accuracy(net, num_batches, batch_size=20):
        acc = 0.0
        for _ in range(num_batches):
            net.forward()
            gts = net.blobs["label"].data
            ests = net.blobs["score"].data > 0
            acc += sum(hamming_distance(gt, est) for gt, est in zip(gts, ests, strict=True))
        return acc / (num_batches * batch_size)

    solver.step(80)
    assert check_accuracy(solver.test_nets[0], 2) > 0.95
    assert solver.net.layers[0].batch_size == 16


# -- siamese --------------------------------------------------------------------------------------------------------
def test_a_siamese_net_shares_its_weights(folder):
    images, labels = stripes(40)
    pairs = np.concatenate([images, np.roll(images, 1, axis=0)], axis=1)
    same = labels == np.roll(labels, 1)
    same[::2] = True
    pairs[::2, 1] = pairs[::2, 0]
    path = write_lmdb("pairs_lmdb", pairs, same)
    n = caffe.NetSpec()
    n.pair_data, n.sim = L.Data(
        batch_size=20, backend=P.Data.LMDB, source=path, ntop=2, transform_param=dict(scale=1 / 256)
    )
    n.data, n.data_p = L.Slice(n.pair_data, ntop=2, slice_dim=1, slice_point=1)

    def arm(bottom, suffix):
        conv = L.Convolution(
            bottom, kernel_size=3, num_output=4, weight_filler=dict(type="xavier"),
            param=[dict(name="conv_w", lr_mult=1), dict(name="conv_b", lr_mult=2)],
        )  # fmt: skip
        n["conv" + suffix] = conv
        n["relu" + suffix] = L.ReLU(conv, in_place=True)
        n["feat" + suffix] = L.InnerProduct(
            n["relu" + suffix], num_output=2, weight_filler=dict(type="xavier"),
            param=[dict(name="feat_w", lr_mult=1), dict(name="feat_b", lr_mult=2)],
        )  # fmt: skip

    arm(n.data, "")
    arm(n.data_p, "_p")
    n.loss = L.ContrastiveLoss(n.feat, n.feat_p, n.sim, margin=1)
    Path("siamese.prototxt").write_text(str(n.to_proto()))
    Path("solver.prototxt").write_text(
        'train_net: "siamese.prototxt" base_lr: 0.005 momentum: 0.9 lr_policy: "fixed" max_iter: 100'
    )
    solver = caffe.get_solver("solver.prototxt")
    first, second = solver.net.params["conv"][0].data, solver.net.params["conv_p"][0].data
    assert first.ctypes.data == second.ctypes.data
    losses = []
    for _ in range(60):
        solver.step(1)
        losses.append(float(solver.net.blobs["loss"].data))
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) / 2
    np.testing.assert_array_equal(first, second)
    raw_data = images[:5].reshape(5, 1, 12, 12) * 0.00390625
    deploy = caffe.Net(
        write(
            folder,
            """input: "data" input_shape { dim: 5 dim: 1 dim: 12 dim: 12 }
               layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
                       convolution_param { num_output: 4 kernel_size: 3 } }
               layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
               layer { name: "feat" type: "InnerProduct" bottom: "conv" top: "feat"
                       inner_product_param { num_output: 2 } }""",
            "deploy.prototxt",
        ),
        _saved(solver.net),
        caffe.TEST,
    )
    features = deploy.forward_all(data=raw_data)["feat"]
    assert np.linalg.norm(features[0] - features[2]) < np.linalg.norm(features[0] - features[1])


def _saved(net: caffe.Net) -> str:
    net.save("trained.caffemodel")
    return "trained.caffemodel"


# -- logistic regression from HDF5 -----------------------------------------------------------------------------------
def test_brewing_logistic_regression(folder):
    x = RNG.normal(size=(200, 4)).astype("f4")
    y = (x @ np.array([2, -1, 0.5, 0]) > 0).astype("f4")
    for name, rows in (("train", slice(0, 150)), ("test", slice(150, 200))):
        with h5py.File(f"{name}.h5", "w") as f:
            f["data"] = x[rows]
            f["label"] = y[rows]
        Path(f"{name}.txt").write_text(f"{name}.h5\n")

    def logreg(hdf5, batch_size):
        n = caffe.NetSpec()
        n.data, n.label = L.HDF5Data(batch_size=batch_size, source=hdf5, ntop=2)
        n.ip1 = L.InnerProduct(n.data, num_output=2, weight_filler=dict(type="xavier"))
        n.accuracy = L.Accuracy(n.ip1, n.label)
        n.loss = L.SoftmaxWithLoss(n.ip1, n.label)
        return n.to_proto()

    Path("logreg_train.prototxt").write_text(str(logreg("train.txt", 10)))
    Path("logreg_test.prototxt").write_text(str(logreg("test.txt", 10)))
    Path("solver.prototxt").write_text(
        """train_net: "logreg_train.prototxt" test_net: "logreg_test.prototxt" max_iter: 300 test_iter: 5
           test_interval: 100 base_lr: 0.1 lr_policy: "step" gamma: 0.1 stepsize: 5000 display: 1000 momentum: 0.9
           weight_decay: 5e-4 snapshot: 300 snapshot_prefix: "train" solver_mode: CPU"""
    )
    solver = caffe.get_solver("solver.prototxt")
    solver.solve()
    accuracy = 0
    batch_size = solver.test_nets[0].blobs["data"].num
    test_iters = int(50 / batch_size)
    for _ in range(test_iters):
        solver.test_nets[0].forward()
        accuracy += solver.test_nets[0].blobs["accuracy"].data
    assert accuracy / test_iters > 0.9
    assert Path("train_iter_300.caffemodel").is_file()


# -- detection ------------------------------------------------------------------------------------------------------
def test_detection_in_windows(folder):
    net = deployed(folder)
    name = picture("scene.png", (40, 50))
    windows = [np.array([2, 3, 30, 40]), np.array([0, 0, 14, 14])]
    detector = caffe.Detector("deploy.prototxt", "model.caffemodel", mean=np.array([9.0, 9, 9]), raw_scale=255)
    found = detector.detect_windows([(name, windows)])
    image = caffe.io.load_image(name)
    for entry, window in zip(found, windows, strict=True):
        crop = image[window[0] : window[2], window[1] : window[3]]
        net.blobs["data"].data[...] = caffe.io.resize_image(crop, (14, 14)).transpose(2, 0, 1) * 255 - 9
        np.testing.assert_allclose(entry["prediction"], net.forward()["prob"][0], rtol=1e-4)
        assert entry["filename"] == name
        assert entry["window"] is window
    assert detector.detect_windows([]) == []


def test_detection_with_context(folder):
    deployed(folder)
    name = picture("scene.png", (40, 50))
    mean = np.array([10.0, 20, 30])
    detector = caffe.Detector(
        "deploy.prototxt", "model.caffemodel", mean=mean, raw_scale=255, channel_swap=(2, 1, 0), context_pad=2
    )
    image = caffe.io.load_image(name)
    inside = detector.crop(image, (10, 10, 30, 30))
    assert inside.shape == (14, 14, 3)
    # 21 pixels enlarged by 14 / 10 around (20.5, 20.5): rows and columns 6 to 35
    np.testing.assert_allclose(inside[:13, :13], caffe.io.resize_image(image[6:35, 6:35], (14, 14))[:13, :13], atol=0.2)
    corner = detector.crop(image, (0, 0, 20, 20))
    # 4 of the 30 rows of the enlarged window lie outside the image: two of the 14 are the mean, as RGB in [0, 1]
    assert corner[0, 5].tolist() == pytest.approx((mean[::-1] / 255).tolist(), rel=1e-5)
    assert corner[5, 5].tolist() != corner[0, 5].tolist()
    assert len(detector.detect_windows([(name, [(0, 0, 20, 20)])])) == 1


# -- looking at gradients --------------------------------------------------------------------------------------------
def test_gradient_ascent_on_the_input(folder):
    """Start anywhere, set a diff, go back to the data: dreams and saliency maps."""
    Path("forced.prototxt").write_text(f"force_backward: true\n{DEPLOY}")
    net = caffe.Net("forced.prototxt", caffe.TEST)
    net.blobs["data"].reshape(1, 3, 14, 14)
    src, dst = net.blobs["data"], net.blobs["fc2"]
    src.data[:] = RNG.normal(size=src.data.shape)
    energies = []
    for _ in range(5):
        net.forward(end="relu2")
        energies.append(float((dst.data**2).sum()))
        dst.diff[:] = dst.data
        net.backward(start="relu2")
        g = src.diff[0]
        src.data[:] += 0.5 / np.abs(g).mean() * g
    assert energies == sorted(energies)
    net.forward()
    label_diff = np.zeros_like(net.blobs["prob"].data)
    label_diff[0, 3] = 1
    saliency = net.backward(prob=label_diff)["data"]
    assert saliency.shape == (1, 3, 14, 14)
    value = net.blobs["prob"].data[0, 3].copy()
    step = 1e-2 * saliency / np.abs(saliency).max()
    src.data[:] += step
    assert net.forward()["prob"][0, 3] - value == pytest.approx((saliency * step).sum(), rel=0.1)
