"""What reading data costs: decoding and transforming beside decoding alone, a train step beside one on resident data.

    python -m bench.data [--images 512] [--rounds 7] [--steps 8] [--json OUT]

The first rows are one thread: images per second of its CPU time, from an LMDB into the batch (read, parse, decode, crop
at random, mirror, subtract the mean, write), beside cv2.imdecode alone on the same bytes. Images are 256 × 256 with the
spectrum of photographs, as JPEG of OpenCV's default quality, cropped to 227 × 227. The row below shows how much of the
difference writing the batch alone takes.

The others are AlexNet, forward, backward and update, on all cores: with batches from that LMDB beside the same step on
a batch that stays in memory. Steps with data are timed once all batches made in advance are used up, so that every step
pays for one batch. The limit is at most 1.05.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import cv2
import lmdb
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from models.generate import bench_text
from poseidon.data.batch import BatchMemory, RecordBatches
from poseidon.data.datum import DatumSource
from poseidon.data.lmdb import LmdbStore
from poseidon.data.shard import Order, Share, Stream
from poseidon.data.transformer import Transformer, TransformOptions
from poseidon.net import Net
from poseidon.net.draws import key_of
from poseidon.spec import caffe_pb2, parse_net

SIDE, CROP, BATCH = 256, 227, 64
STEP_BATCH = 16
MEANS = (104.0, 117.0, 123.0)


@dataclass(frozen=True, slots=True)
class Result:
    what: str
    rate: float
    beside: float
    ratio: float
    limit: str
    holds: bool


def photographs(count: int) -> Iterator[np.ndarray]:
    """Images with the 1/f spectrum and the correlated colors of photographs."""
    rng = np.random.RandomState(0)
    frequencies = np.hypot(np.fft.fftfreq(SIDE)[:, None], np.fft.fftfreq(SIDE))
    frequencies[0, 0] = 1

    def noise() -> np.ndarray:
        field = np.fft.ifft2(np.fft.fft2(rng.randn(SIDE, SIDE)) / frequencies**1.1).real
        return field / field.std()

    for _ in range(count):
        gray = noise()
        image = np.stack([gray + 0.35 * noise() for _ in range(3)], axis=2)
        yield np.clip(128 + 50 * image, 0, 255).astype(np.uint8)


def write_database(path: str, count: int, encoded: bool) -> list[bytes]:
    """An LMDB of `count` images (32 different ones); returns the JPEGs, each in memory of its own."""
    images = list(photographs(min(count, 32)))
    jpegs = [cv2.imencode(".jpg", images[number % len(images)])[1].tobytes() for number in range(count)]
    with lmdb.open(path, map_size=1 << 30) as environment, environment.begin(write=True) as transaction:
        for number in range(count):
            which = number % len(images)
            datum = caffe_pb2.Datum(channels=3, height=SIDE, width=SIDE, label=number % 1000, encoded=encoded)
            datum.data = jpegs[number] if encoded else images[which].transpose(2, 0, 1).tobytes()
            transaction.put(b"%08d" % number, datum.SerializeToString())
    return jpegs


def batches_from(path: str) -> RecordBatches:
    source = DatumSource(LmdbStore(path), color=True)
    transformer = Transformer(TransformOptions(CROP, random_crop=True, mirror=True, mean_values=MEANS))
    stream = Stream(source, Order(len(source)))
    return RecordBatches(
        stream, transformer, Share(), BATCH, lambda sample: key_of(1, "data", sample), BatchMemory(torch.float32)
    )


def seconds(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    begin = clock()
    run()
    return clock() - begin


def measure_images(folder: str, count: int, rounds: int) -> list[Result]:
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    jpegs = write_database(f"{folder}/jpeg", count, encoded=True)
    write_database(f"{folder}/raw", count, encoded=False)
    jpeg, raw = batches_from(f"{folder}/jpeg"), batches_from(f"{folder}/raw")
    batch = np.ones((BATCH, 3, CROP, CROP), np.float32)
    contenders: dict[str, Callable[[int], object]] = {
        "alone": lambda start: decode(jpegs[start : start + BATCH], None),
        "floor": lambda start: decode(jpegs[start : start + BATCH], batch),
        "jpeg": jpeg.make,
        "raw": raw.make,
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for round_number in range(rounds + 1):
        for start in range(0, count - BATCH + 1, BATCH):
            for name, run in contenders.items():
                time_s = seconds(lambda run=run, start=start: run(start), time.thread_time)
                if round_number:  # the first round reads the database into memory
                    times[name].append(time_s / BATCH)
    rates = {name: 1 / statistics.median(taken) for name, taken in times.items()}

    def beside_decoding(name: str) -> float:
        return statistics.median(a / b for a, b in zip(times["alone"], times[name], strict=True))

    ratio = beside_decoding("jpeg")
    return [
        Result("JPEG, images/s beside decoding alone", rates["jpeg"], rates["alone"], ratio, "", True),
        Result(
            "  decoding, and zeros into the batch", rates["floor"], rates["alone"], beside_decoding("floor"), "", True
        ),
        Result("  raw bytes in place of JPEG", rates["raw"], rates["alone"], beside_decoding("raw"), "", True),
    ]


def decode(jpegs: list[bytes], batch: np.ndarray | None) -> None:
    """OpenCV alone; with a batch also the least a transformation can cost, its memory being written."""
    for i, jpeg in enumerate(jpegs):
        cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
        if batch is not None:
            batch[i].fill(0)


def alexnet_on(path: str) -> Net:
    """AlexNet with a Data layer in place of its inputs."""
    source = parse_net(bench_text("alexnet", STEP_BATCH))
    data = caffe_pb2.LayerParameter(name="data", type="Data", top=["data", "label"])
    data.data_param.source, data.data_param.backend = path, caffe_pb2.DataParameter.LMDB
    data.data_param.batch_size = STEP_BATCH
    data.transform_param.crop_size, data.transform_param.mirror = CROP, True
    data.transform_param.mean_value.extend(MEANS)
    layers = [layer for layer in source.net.layer if layer.type != "Input"]
    net = caffe_pb2.NetParameter(name="AlexNet", layer=[data, *layers])
    return Net(net, phase="TRAIN", seed=1)


def measure_steps(path: str, what: str, rounds: int, steps: int) -> Result:
    net = alexnet_on(path)
    layer = net.layers["data"]
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        loss = net().loss
        assert loss is not None
        loss.backward()
        optimizer.step()

    resident = layer()
    ahead = layer.spec.data_param.prefetch
    times: dict[str, list[float]] = {"data": [], "resident": []}
    for _ in range(rounds):
        for _ in range(ahead + 1):
            step()
        times["data"].append(statistics.median(seconds(step) for _ in range(steps)))
        layer.close()
        layer.forward = lambda: resident
        step()
        times["resident"].append(statistics.median(seconds(step) for _ in range(steps)))
        del layer.forward
    ratio = statistics.median(a / b for a, b in zip(times["data"], times["resident"], strict=True))
    data_ms, resident_ms = (statistics.median(times[kind]) * 1e3 for kind in ("data", "resident"))
    return Result(f"{what}, ms per AlexNet step beside resident", data_ms, resident_ms, ratio, "<= 1.05", ratio <= 1.05)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=8, help="per round; 0 leaves the train steps out")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    num_cores = torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="bench-data-") as folder:
        results = measure_images(folder, options.images, options.rounds)
        if options.steps:
            torch.set_num_threads(num_cores)
            for kind, what in (("jpeg", "JPEG"), ("raw", "raw bytes")):
                results.append(measure_steps(f"{folder}/{kind}", what, options.rounds, options.steps))
    for result in results:
        print(
            f"{result.what:50}{result.rate:>9.1f}{result.beside:>9.1f}{result.ratio:>8.3f}  {result.limit}"
            f"{'' if result.holds else '   <-- over the limit'}"
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 0 if all(result.holds for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
