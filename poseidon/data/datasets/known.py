"""The data sets that are known: where their originals are published, how they are read, how they are stored.

Sizes and checksums are those of the files as published; all mirrors have the same files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from poseidon.data.datasets.cifar import ARCHIVE, read_cifar10_splits
from poseidon.data.datasets.digits import installed_digits, read_digit_splits
from poseidon.data.datasets.download import PublishedFile
from poseidon.data.datasets.idx import read_idx_splits
from poseidon.data.datasets.images import Splits


@dataclass(frozen=True, slots=True)
class Dataset:
    """How one data set is found, read and stored.

    read         folders or files of the originals → what is in them
    files        as published, in each of the `mirrors`
    installed    where a package of the system or of Python has put the originals; None: nowhere
    """

    read: Callable[[Sequence[Path]], Splits]
    files: tuple[PublishedFile, ...] = ()
    mirrors: tuple[str, ...] = ()
    installed: Callable[[], Path | None] = lambda: None
    key_digits: int = 8
    has_mean: bool = False


def debian_fashion_mnist() -> Path | None:
    """Where Debian's package dataset-fashion-mnist puts the files."""
    folder = Path("/usr/share/datasets/fashion-mnist")
    return folder if folder.is_dir() else None


DATASETS = {
    "mnist": Dataset(
        read_idx_splits,
        (
            PublishedFile(
                "train-images-idx3-ubyte.gz",
                9912422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            PublishedFile(
                "train-labels-idx1-ubyte.gz", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
            ),
            PublishedFile(
                "t10k-images-idx3-ubyte.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
            ),
            PublishedFile(
                "t10k-labels-idx1-ubyte.gz", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
            ),
        ),
        ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
    ),
    "fashion-mnist": Dataset(
        read_idx_splits,
        (
            PublishedFile(
                "train-images-idx3-ubyte.gz",
                26421880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            PublishedFile(
                "train-labels-idx1-ubyte.gz", 29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"
            ),
            PublishedFile(
                "t10k-images-idx3-ubyte.gz", 4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
            ),
            PublishedFile(
                "t10k-labels-idx1-ubyte.gz", 5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"
            ),
        ),
        (
            "https://fashion-mnist.s3.eu-central-1.amazonaws.com",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        ),
        installed=debian_fashion_mnist,
    ),
    "cifar10": Dataset(
        read_cifar10_splits,
        (PublishedFile(ARCHIVE, 170052171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),),
        ("https://www.cs.toronto.edu/~kriz",),
        key_digits=5,
        has_mean=True,
    ),
    "digits": Dataset(read_digit_splits, installed=installed_digits),
}
