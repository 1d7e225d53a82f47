"""The five nets, each from the blob "data" (and "label") to its losses, as their authors published them.

lenet          LeCun et al. 1998, in the ReLU and softmax form Caffe made usual      MNIST      28×28
cifar10_quick  Krizhevsky's quick CIFAR-10 net                                       CIFAR-10   32×32
alexnet        Krizhevsky et al. 2012, two groups, normalisation before pooling      ImageNet  227×227
googlenet      Szegedy et al. 2014, with both auxiliary classifiers                  ImageNet  224×224
resnet50       He et al. 2015, stride in the first 1×1 of a stage                    ImageNet  224×224
"""

from __future__ import annotations

from models.prototxt import (
    MSRA,
    XAVIER,
    ZERO,
    Layers,
    Style,
    Word,
    accuracy,
    conv,
    dropout,
    filler,
    inner_product,
    layer,
    lrn,
    pool,
    relu,
    softmax_loss,
)


def lenet() -> Layers:
    style = Style(XAVIER, ZERO, decays=False)
    return [
        conv("conv1", "data", 20, style, kernel_size=5, stride=1),
        pool("MAX", "pool1", "conv1", kernel_size=2, stride=2),
        conv("conv2", "pool1", 50, style, kernel_size=5, stride=1),
        pool("MAX", "pool2", "conv2", kernel_size=2, stride=2),
        inner_product("ip1", "pool2", 500, style),
        relu("relu1", "ip1"),
        inner_product("ip2", "ip1", 10, style),
        accuracy("accuracy", "ip2"),
        softmax_loss("loss", "ip2", "loss"),
    ]


def cifar10_quick() -> Layers:
    def style(std: float) -> Style:
        return Style(filler("gaussian", std=std), ZERO, decays=False)

    window = {"kernel_size": 5, "pad": 2, "stride": 1}
    return [
        conv("conv1", "data", 32, style(0.0001), **window),
        pool("MAX", "pool1", "conv1", kernel_size=3, stride=2),
        relu("relu1", "pool1"),
        conv("conv2", "pool1", 32, style(0.01), **window),
        relu("relu2", "conv2"),
        pool("AVE", "pool2", "conv2", kernel_size=3, stride=2),
        conv("conv3", "pool2", 64, style(0.01), **window),
        relu("relu3", "conv3"),
        pool("AVE", "pool3", "conv3", kernel_size=3, stride=2),
        inner_product("ip1", "pool3", 64, style(0.1)),
        inner_product("ip2", "ip1", 10, style(0.1)),
        accuracy("accuracy", "ip2"),
        softmax_loss("loss", "ip2", "loss"),
    ]


def alexnet() -> Layers:
    def style(std: float, bias: float) -> Style:
        return Style(filler("gaussian", std=std), filler("constant", value=bias))

    three = {"kernel_size": 3, "pad": 1}
    net = [
        conv("conv1", "data", 96, style(0.01, 0), kernel_size=11, stride=4),
        relu("relu1", "conv1"),
        lrn("norm1", "conv1"),
        pool("MAX", "pool1", "norm1", kernel_size=3, stride=2),
        conv("conv2", "pool1", 256, style(0.01, 0.1), kernel_size=5, pad=2, group=2),
        relu("relu2", "conv2"),
        lrn("norm2", "conv2"),
        pool("MAX", "pool2", "norm2", kernel_size=3, stride=2),
        conv("conv3", "pool2", 384, style(0.01, 0), **three),
        relu("relu3", "conv3"),
        conv("conv4", "conv3", 384, style(0.01, 0.1), **three, group=2),
        relu("relu4", "conv4"),
        conv("conv5", "conv4", 256, style(0.01, 0.1), **three, group=2),
        relu("relu5", "conv5"),
        pool("MAX", "pool5", "conv5", kernel_size=3, stride=2),
    ]
    for number, bottom in ((6, "pool5"), (7, "fc6")):
        blob = f"fc{number}"
        net += [
            inner_product(blob, bottom, 4096, style(0.005, 0.1)),
            relu(f"relu{number}", blob),
            dropout(f"drop{number}", blob, 0.5),
        ]
    return [
        *net,
        inner_product("fc8", "fc7", 1000, style(0.01, 0)),
        accuracy("accuracy", "fc8"),
        softmax_loss("loss", "fc8", "loss"),
    ]


GOOGLENET_STYLE = Style(XAVIER, filler("constant", value=0.2))
GOOGLENET_SCORES = Style(XAVIER, ZERO)

# Output channels per inception module: 1×1; 3×3 after its reduction; 5×5 after its reduction; projection after pooling.
INCEPTION = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def conv_relu(name: str, bottom: str, num_output: int, **shape: int) -> Layers:
    scope, _, own = name.rpartition("/")
    return [conv(name, bottom, num_output, GOOGLENET_STYLE, **shape), relu(f"{scope}/relu_{own}", name)]


def inception(module: str, bottom: str) -> Layers:
    one, three_reduce, three, five_reduce, five, projection = INCEPTION[module]
    scope = f"inception_{module}"
    parts = [f"{scope}/{part}" for part in ("1x1", "3x3", "5x5", "pool_proj")]
    return [
        *conv_relu(f"{scope}/1x1", bottom, one, kernel_size=1),
        *conv_relu(f"{scope}/3x3_reduce", bottom, three_reduce, kernel_size=1),
        *conv_relu(f"{scope}/3x3", f"{scope}/3x3_reduce", three, kernel_size=3, pad=1),
        *conv_relu(f"{scope}/5x5_reduce", bottom, five_reduce, kernel_size=1),
        *conv_relu(f"{scope}/5x5", f"{scope}/5x5_reduce", five, kernel_size=5, pad=2),
        pool("MAX", f"{scope}/pool", bottom, kernel_size=3, stride=1, pad=1),
        *conv_relu(f"{scope}/pool_proj", f"{scope}/pool", projection, kernel_size=1),
        layer("Concat", f"{scope}/output", parts, [f"{scope}/output"]),
    ]


def classifier(head: str, scores: str, bottom: str, weight: float) -> Layers:
    """The scores of one of GoogLeNet's three heads, its loss and its two test accuracies."""
    return [
        inner_product(scores, bottom, 1000, GOOGLENET_SCORES),
        softmax_loss(f"{head}/loss", scores, f"{head}/loss", weight),
        accuracy(f"{head}/top-1", scores),
        accuracy(f"{head}/top-5", scores, top_k=5),
    ]


def auxiliary_head(head: str, bottom: str) -> Layers:
    return [
        pool("AVE", f"{head}/ave_pool", bottom, kernel_size=5, stride=3),
        *conv_relu(f"{head}/conv", f"{head}/ave_pool", 128, kernel_size=1),
        inner_product(f"{head}/fc", f"{head}/conv", 1024, GOOGLENET_STYLE),
        relu(f"{head}/relu_fc", f"{head}/fc"),
        dropout(f"{head}/drop_fc", f"{head}/fc", 0.7),
        *classifier(head, f"{head}/classifier", f"{head}/fc", 0.3),
    ]


def googlenet() -> Layers:
    half = {"kernel_size": 3, "stride": 2}
    net = [
        *conv_relu("conv1/7x7_s2", "data", 64, kernel_size=7, stride=2, pad=3),
        pool("MAX", "pool1/3x3_s2", "conv1/7x7_s2", **half),
        lrn("pool1/norm1", "pool1/3x3_s2"),
        *conv_relu("conv2/3x3_reduce", "pool1/norm1", 64, kernel_size=1),
        *conv_relu("conv2/3x3", "conv2/3x3_reduce", 192, kernel_size=3, pad=1),
        lrn("conv2/norm2", "conv2/3x3"),
        pool("MAX", "pool2/3x3_s2", "conv2/norm2", **half),
    ]
    blob = "pool2/3x3_s2"
    for module in INCEPTION:
        net += inception(module, blob)
        blob = f"inception_{module}/output"
        if module in ("3b", "4e"):
            name = f"pool{module[0]}/3x3_s2"
            net.append(pool("MAX", name, blob, **half))
            blob = name
        if module in ("4a", "4d"):
            net += auxiliary_head("loss1" if module == "4a" else "loss2", blob)
    return [
        *net,
        pool("AVE", "pool5/7x7_s1", blob, kernel_size=7, stride=1),
        dropout("pool5/drop_7x7_s1", "pool5/7x7_s1", 0.4),
        *classifier("loss3", "loss3/classifier", "pool5/7x7_s1", 1),
    ]


def conv_norm(suffix: str, bottom: str, num_output: int, **shape: int) -> Layers:
    """A bias-free convolution, its batch normalisation and the learned scale; `suffix` "2a_branch1" names all three."""
    blob = suffix if suffix == "conv1" else f"res{suffix}"
    norm = f"_{suffix}" if suffix == "conv1" else suffix
    return [
        conv(blob, bottom, num_output, Style(MSRA, None), **shape),
        layer("BatchNorm", f"bn{norm}", [blob], [blob]),
        layer("Scale", f"scale{norm}", [blob], [blob], scale_param={"bias_term": True}),
    ]


def bottleneck(unit: str, bottom: str, width: int, stride: int, projects: bool) -> Layers:
    """y = relu(shortcut + 1×1 · 3×3 · 1×1), `width` channels inside and 4·`width` outside."""
    shortcut, net = bottom, []
    if projects:
        shortcut = f"res{unit}_branch1"
        net += conv_norm(f"{unit}_branch1", bottom, 4 * width, kernel_size=1, stride=stride)
    a, b, c = (f"res{unit}_branch2{step}" for step in "abc")
    return [
        *net,
        *conv_norm(f"{unit}_branch2a", bottom, width, kernel_size=1, stride=stride),
        relu(f"{a}_relu", a),
        *conv_norm(f"{unit}_branch2b", a, width, kernel_size=3, pad=1),
        relu(f"{b}_relu", b),
        *conv_norm(f"{unit}_branch2c", b, 4 * width, kernel_size=1),
        layer("Eltwise", f"res{unit}", [shortcut, c], [f"res{unit}"], eltwise_param={"operation": Word("SUM")}),
        relu(f"res{unit}_relu", f"res{unit}"),
    ]


def resnet50() -> Layers:
    net = [
        *conv_norm("conv1", "data", 64, kernel_size=7, stride=2, pad=3),
        relu("conv1_relu", "conv1"),
        pool("MAX", "pool1", "conv1", kernel_size=3, stride=2),
    ]
    blob = "pool1"
    for stage, num_units in zip((2, 3, 4, 5), (3, 4, 6, 3), strict=True):
        for index in range(num_units):
            unit = f"{stage}{'abcdef'[index]}"
            first = index == 0
            net += bottleneck(unit, blob, 16 * 2**stage, 2 if first and stage > 2 else 1, projects=first)
            blob = f"res{unit}"
    return [
        *net,
        layer("Pooling", "pool5", [blob], ["pool5"], pooling_param={"pool": Word("AVE"), "global_pooling": True}),
        inner_product("fc1000", "pool5", 1000, Style(XAVIER, ZERO)),
        accuracy("accuracy", "fc1000"),
        accuracy("accuracy_top5", "fc1000", top_k=5),
        softmax_loss("loss", "fc1000", "loss"),
    ]
