"""Features: the records of one worker, computed by hand; those of several, key by key the same; bad requests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from poseidon.data.datum import float_datum
from poseidon.errors import NetError, UsageError
from poseidon.net import Net
from poseidon.run.extraction import deal_records
from poseidon.run.rendezvous import Place
from poseidon.spec import caffe_pb2
from poseidon.tools.feature_request import FeatureRequest
from poseidon.tools.features import Deal, extract_features
from poseidon.tools.partition import partition_data
from tests.tools.kit import Told, datums, read_lmdb, write_lmdb

NUM_RECORDS, BATCH = 14, 4
PIXELS = np.random.RandomState(7).randint(0, 256, (NUM_RECORDS, 2, 3, 3)).astype(np.uint8)
NET = """
name: "features"
layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "db" batch_size: 4 backend: LMDB %s } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 5
  weight_filler { type: "gaussian" std: 0.01 } } }
layer { name: "relu" type: "ReLU" bottom: "ip" top: "ip" }
layer { name: "sum" type: "Reduction" bottom: "ip" top: "sum" }
layer { name: "deep" type: "Reshape" bottom: "data" top: "deep" reshape_param { shape { dim: 4 dim: 2 dim: 3 dim: 3
  dim: 1 } } }
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    records = []
    for number, image in enumerate(PIXELS):
        datum = caffe_pb2.Datum(channels=2, height=3, width=3, data=image.tobytes(), label=number)
        records.append((b"%08d" % number, datum.SerializeToString()))
    write_lmdb(tmp_path / "db", records)
    return tmp_path


def build(extra: str = "") -> Net:
    return Net.from_text(NET % extra, phase="TEST", seed=1)


def extract(net: Net, blobs: str, targets: str, num_batches: int, deal: Deal | None = None, told=None, backend="lmdb"):
    request = FeatureRequest(tuple(blobs.split(",")), tuple(targets.split(",")), num_batches, backend)
    extract_features(net, request, deal or Deal(), told or Told())


def by_hand(net: Net) -> np.ndarray:
    weight, bias = (param.detach().numpy() for param in net.params["ip"])
    return np.maximum(PIXELS.reshape(NUM_RECORDS, -1).astype(np.float64) @ weight.T + bias, 0)


@pytest.mark.parametrize("backend", ["lmdb", "leveldb"])
def test_one_worker(backend, here):
    net = build()
    told = Told()
    extract(net, "ip,data,label,sum", "f_ip,f_data,f_label,f_sum", 3, told=told, backend=backend)
    expected = by_hand(net)
    found = datums(here / "f_ip", backend)
    assert list(found) == [f"{n:010d}" for n in range(3 * BATCH)]
    for number, datum in enumerate(found.values()):
        assert (datum.channels, datum.height, datum.width) == (5, 1, 1)
        assert not datum.HasField("label")
        assert not datum.HasField("data")
        assert np.allclose(datum.float_data, expected[number], rtol=1e-5, atol=1e-5)
    data = list(datums(here / "f_data", backend).values())
    assert [(datum.channels, datum.height, datum.width) for datum in data] == [(2, 3, 3)] * 12
    assert all(np.array_equal(d.float_data, PIXELS[n].ravel()) for n, d in enumerate(data))
    assert [datum.float_data[0] for datum in datums(here / "f_label", backend).values()] == list(range(12))
    # A blob without a batch is one record for each batch.
    sums = [datum.float_data[0] for datum in datums(here / "f_sum", backend).values()]
    assert np.allclose(sums, expected[:12].reshape(3, -1).sum(1), rtol=1e-4)
    assert told.lines[-1] == "E Successfully extracted the features!"
    assert "E Extracted features of 12 query images for feature blob ip" in told.lines


def test_data_begin_again_after_their_end(here):
    extract(build(), "label", "f", 5)
    labels = [datum.float_data[0] for datum in datums(here / "f").values()]
    assert labels == [n % NUM_RECORDS for n in range(20)]


def test_a_record_is_what_protobuf_writes():
    values = np.arange(12, dtype=np.float32).reshape(2, 3, 2) / 7
    datum = caffe_pb2.Datum(channels=2, height=3, width=2, float_data=values.ravel().tolist())
    assert float_datum(values) == datum.SerializeToString()


# -- several workers --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("num_workers", [2, 3, 5])
def test_workers_share_batches(num_workers, here):
    extract(build(), "ip", "alone", 3)
    together = {}
    for rank in range(num_workers):
        net = build()
        deal = deal_records(net, Place(rank, num_workers, None, None, "x", 1))
        assert deal == Deal(rank, num_workers, own_part=False)
        extract(net, "ip", f"part_{rank}", 3, deal)
        records = dict(read_lmdb(here / f"part_{rank}"))
        assert not set(records) & set(together)
        together.update(records)
    assert together == dict(read_lmdb(here / "alone"))  # bit for bit: each batch is one that a single worker runs


@pytest.mark.parametrize("num_workers", [2, 3])
@pytest.mark.parametrize("num_batches", [2, 3])
def test_workers_with_parts_of_their_own(num_workers, num_batches, here):
    extract(build(), "data", "alone", num_batches)
    partition_data("db", "lmdb", num_workers, Told())
    together = {}
    for rank in range(num_workers):
        net = build("shared_file_system: false")
        deal = deal_records(net, Place(rank, num_workers, None, None, "x", 1))
        assert deal == Deal(rank, num_workers, own_part=True)
        extract(net, "data", f"part_{rank}", num_batches, deal)
        records = dict(read_lmdb(here / f"part_{rank}"))
        assert not set(records) & set(together)
        together.update(records)
    assert together == dict(read_lmdb(here / "alone"))


@pytest.mark.parametrize("own_part", [False, True])
@pytest.mark.parametrize("num_workers", [1, 2, 3, 7])
@pytest.mark.parametrize("num_batches", [1, 4, 6, 7])
def test_every_row_has_one_owner(own_part, num_workers, num_batches):
    rows = 5
    numbers = []
    for rank in range(num_workers):
        deal = Deal(rank, num_workers, own_part)
        for batch in deal.batches(num_batches):
            numbers += [number for number in deal.numbers(batch, rows) if number < num_batches * rows]
    assert sorted(numbers) == list(range(num_batches * rows))


def test_layers_that_hang_on_all_batches():
    lstm = """
layer { name: "data" type: "DummyData" top: "x" top: "c" dummy_data_param { shape { dim: 2 dim: 1 dim: 3 }
  shape { dim: 2 dim: 1 } } }
layer { name: "lstm" type: "LSTM" bottom: "x" bottom: "c" top: "y" recurrent_param { num_output: 2
  weight_filler { type: "constant" } } }"""
    with pytest.raises(UsageError, match=r"layer 'lstm' \(LSTM\) hangs on all batches"):
        deal_records(Net.from_text(lstm, phase="TEST"), Place(0, 2, None, None, "x", 1))


# -- mistakes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("blobs", "targets", "kind", "expected"),
    [
        ("ip,data", "f", UsageError, r"must be equal, got 2 \(ip,data\) and 1 \(f\)"),
        ("ip,data", "f,f", UsageError, "each blob needs a dataset of its own"),
        ("lable", "f", NetError, r"Unknown feature blob name lable in the network <text> \(did you mean 'label'\?\)"),
        ("deep", "f", NetError, "blob deep has 5 axes"),
    ],
)
def test_requests_that_cannot_be_met(blobs, targets, kind, expected, here):
    with pytest.raises(kind, match=expected):
        extract(build(), blobs, targets, 1)
    assert [path.name for path in here.iterdir()] == ["db"]


def test_nets_that_are_fed():
    fed = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 } } }'
    with pytest.raises(UsageError, match="takes x from its caller"):
        extract(Net.from_text(fed), "x", "f", 1)


def test_interrupted_it_leaves_nothing(here):
    with pytest.raises(KeyboardInterrupt):
        extract(build(), "ip,data", "f,g", 3, told=Told(interrupt_at=2))
    assert [path.name for path in here.iterdir()] == ["db"]
