"""What the benchmark of recovery needs, it makes."""

from __future__ import annotations

from dataclasses import replace

from bench.recovery import DIGITS, digits_in, write_lenet
from poseidon.data.datasets import known
from poseidon.spec import read_net
from tests.data.test_datasets import digit_lines, write_csv


def test_lenet_gets_digits_once(tmp_path, monkeypatch):
    source = write_csv(tmp_path / "mnist_5k.csv.gz", digit_lines(15))
    monkeypatch.setitem(known.DATASETS, DIGITS, replace(known.DATASETS[DIGITS], installed=lambda: source))
    data = digits_in(tmp_path / "data")
    source.unlink()
    assert digits_in(data) == data, "they are there already"
    write_lenet(tmp_path, data)
    sources = {layer.data_param.source for layer in read_net(str(tmp_path / "train_val.prototxt")).net.layer}
    assert sources - {""} == {f"{data}/digits_train_lmdb", f"{data}/digits_test_lmdb"}
    assert all((data / f"digits_{split}_lmdb" / "data.mdb").exists() for split in ("train", "test"))
