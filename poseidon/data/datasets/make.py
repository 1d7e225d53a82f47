"""Making a data set: find the originals, read them, write the databases, and only then let them be seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from poseidon.data.datasets.database import write_lmdb, write_mean
from poseidon.data.datasets.download import download
from poseidon.data.datasets.images import Splits
from poseidon.data.datasets.known import DATASETS, Dataset
from poseidon.data.report import Report, silent
from poseidon.data.staging import check_targets, publish, staging
from poseidon.errors import DataError, UsageError
from poseidon.spec import nearest


@dataclass(frozen=True, slots=True)
class MadeDataset:
    """What was written, and from where."""

    source: str
    paths: tuple[Path, ...]
    num_train: int
    num_test: int
    shape: tuple[int, int, int]


def make_dataset(
    name: str, folder: Path, sources: Sequence[Path] = (), overwrite: bool = False, report: Report = silent
) -> MadeDataset:
    """Makes the databases in `folder`: all of them, or none and an error. `sources` are folders or files to take the
    originals from; without them they are downloaded, unless a package has installed them."""
    if name not in DATASETS:
        raise UsageError(f"unknown data set {name!r}{nearest(name, DATASETS)}; data sets: {', '.join(DATASETS)}")
    dataset = DATASETS[name]
    try:
        return _make(dataset, name, folder, list(sources), overwrite, report)
    except OSError as problem:
        raise DataError(f"{problem.filename or folder}: cannot be used ({problem.strerror or problem})") from None


def _make(
    dataset: Dataset, name: str, folder: Path, sources: list[Path], overwrite: bool, report: Report
) -> MadeDataset:
    stem = name.replace("-", "_")
    results = [f"{stem}_train_lmdb", f"{stem}_test_lmdb"]
    if dataset.has_mean:
        results.append(f"{stem}_mean.binaryproto")
    check_targets(folder, results, overwrite)
    if not sources and (installed := dataset.installed()) is not None:
        sources = [installed]
    splits = dataset.read(sources) if sources else None  # a mistake in the sources leaves no trace in the folder
    with staging(folder, name) as place:
        if splits is None:
            splits = dataset.read([download(file, dataset.mirrors, place, report) for file in dataset.files])
        _write(splits, [place / result for result in results], dataset.key_digits, report)
        publish(place, folder, results)
    _, channels, height, width = splits.train.pixels.shape
    return MadeDataset(
        source=", ".join(map(str, sources)) or "downloaded",
        paths=tuple(folder / result for result in results),
        num_train=len(splits.train),
        num_test=len(splits.test),
        shape=(channels, height, width),
    )


def _write(splits: Splits, paths: Sequence[Path], key_digits: int, report: Report) -> None:
    train, test, *mean = paths
    write_lmdb(train, splits.train, key_digits, report)
    write_lmdb(test, splits.test, key_digits, report)
    for path in mean:
        write_mean(path, splits.train)
