"""A loop of `net.forward()` through `import caffe` on LeNet, beside the same torch modules called directly, as ratios.

    python -m bench.face [--repeats 300] [--threads 1]

Both contenders take turns in one process, with the same weights and images; figures are medians. The rows are the
deploy net at several batch sizes, which torch runs without recording a graph, and the training net with its loss,
where both record one. The limit in each row is the largest ratio ours / torch that is acceptable; a single digit, of
which half the time is Python's own whoever runs it, is shown without one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import caffe
from bench.torch_nets import LeNet
from models.generate import MODELS, bench_text, deploy_text

LIMIT = 1.10


@dataclass(frozen=True, slots=True)
class Subject:
    """One row: a net, its phase and batch."""

    label: str
    text: str
    phase: int
    batch: int
    limit: float | None = LIMIT


def subjects() -> list[Subject]:
    deploy = [Subject("deploy", deploy_text(MODELS["lenet"], batch), caffe.TEST, batch) for batch in (10, 64)]
    single = Subject("deploy", deploy_text(MODELS["lenet"], 1), caffe.TEST, 1, limit=None)
    return [single, *deploy, Subject("training", bench_text("lenet", 64), caffe.TRAIN, 64)]


def face(subject: Subject) -> tuple[caffe.Net, Callable[[], object]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "net.prototxt")
        path.write_text(subject.text)
        net = caffe.Net(str(path), subject.phase)
    images = torch.randn(net.blobs["data"].shape, generator=torch.Generator().manual_seed(1))
    net.blobs["data"].data[...] = images.numpy()
    return net, net.forward


def direct(subject: Subject, net: caffe.Net) -> Callable[[], object]:
    """The modules of the torch net, with the face's weights and images."""
    module = LeNet()
    values = [blob.data for blobs in net.params.values() for blob in blobs]
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), values, strict=True):
            parameter.copy_(torch.from_numpy(value))
    images = torch.from_numpy(net.blobs["data"].data.copy())
    labels = torch.zeros(subject.batch, dtype=torch.long)
    if subject.phase == caffe.TRAIN:
        return lambda: module(images, labels)

    @torch.no_grad()
    def run() -> torch.Tensor:
        return torch.softmax(module.classifier(module.features(images).flatten(1)), 1)

    return run


def measure(subject: Subject, repeats: int) -> tuple[float, float, float]:
    """Milliseconds of ours and of torch's, and the median of the ratios of neighbouring turns."""
    net, ours = face(subject)
    theirs = direct(subject, net)
    check(ours(), theirs())
    times: dict[str, list[float]] = {"ours": [], "torch": []}
    contenders = [("ours", ours), ("torch", theirs)]
    for turn in range(repeats + 20):
        for label, run in contenders if turn % 2 else reversed(contenders):
            begin = time.perf_counter()
            run()
            if turn >= 20:
                times[label].append(time.perf_counter() - begin)
    mine, other = (statistics.median(times[label]) * 1e3 for label in ("ours", "torch"))
    return mine, other, statistics.median(a / b for a, b in zip(times["ours"], times["torch"], strict=True))


def check(ours: object, theirs: object) -> None:
    """Both compute the same."""
    assert isinstance(ours, dict)
    assert isinstance(theirs, torch.Tensor)
    (output,) = ours.values()
    np.testing.assert_allclose(output, theirs.detach().numpy(), rtol=1e-4, atol=1e-5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} thread(s), medians of {options.repeats} turns")
    print(f"{'LeNet':10}{'batch':>6}{'ours':>11}{'torch':>11}{'ratio':>8}{'limit':>8}")
    over = 0
    for subject in subjects():
        mine, other, ratio = measure(subject, options.repeats)
        is_over = subject.limit is not None and ratio > subject.limit
        over += is_over
        limit = "–" if subject.limit is None else f"{subject.limit:.2f}"
        print(
            f"{subject.label:10}{subject.batch:>6}{mine:>9.3f}ms{other:>9.3f}ms{ratio:>8.3f}{limit:>8}"
            f"{'   <-- over the limit' if is_over else ''}",
            flush=True,
        )
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
