"""Which nets a solver builds, in which states, from which weights, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from poseidon.errors import NetError, SolverError, SpecError
from poseidon.solver import events
from poseidon.spec import caffe_pb2
from tests.solver.small import made, net_message, solver_message, values

STAGED = 'layer { name: "extra" type: "DummyData" top: "extra" dummy_data_param { shape { dim: 1 } } include { %s } }'


def layer_names(net) -> list[str]:
    return list(net.layers)


def test_each_test_net_has_its_own_state(listing):
    net = net_message(listing, head=STAGED % 'stage: "deep" min_level: 2')
    text = """test_interval: 5 test_iter: 1 test_iter: 1 test_iter: 1
              test_state {} test_state { stage: "deep" level: 2 } test_state { stage: "deep" }"""
    solver, _ = made(solver_message(net, text))
    assert ["extra" in layer_names(each) for each in solver.test_nets] == [False, True, False]
    assert "extra" not in layer_names(solver.net)


def test_the_train_state_adds_to_the_nets_own(listing):
    net = net_message(listing, head=STAGED % 'stage: "a" stage: "b"')
    net.state.stage.append("a")
    solver, _ = made(solver_message(net, 'train_state { stage: "b" }'))
    assert "extra" in layer_names(solver.net)


def test_test_nets_come_in_caffes_order(listing, tmp_path):
    (tmp_path / "named.prototxt").write_text(
        str(
            net_message(
                listing,
                head='layer { name: "file" type: "DummyData" top: "file" dummy_data_param { shape { dim: 1 } } }',
            )
        )
    )
    param = solver_message(
        net_message(listing),
        f"""test_interval: 1 test_iter: 1 test_iter: 1 test_iter: 1
        test_net: "{tmp_path}/named.prototxt" """,
    )
    param.test_net_param.add().CopyFrom(
        net_message(
            listing,
            head='layer { name: "message" type: "DummyData" top: "message" dummy_data_param { shape { dim: 1 } } }',
        )
    )
    solver, recorder = made(param)
    firsts = [layer_names(net)[0] for net in solver.test_nets]
    assert firsts == ["message", "file", "rows"]
    assert [event.origin for event in recorder.of(events.NetPlanned)] == [
        "net_param",
        "test_net_param",
        f"test_net file: {tmp_path}/named.prototxt",
        "net_param",
    ]


def test_train_net_from_a_file(listing, tmp_path):
    (tmp_path / "net.prototxt").write_text(str(net_message(listing)))
    for field in ("net", "train_net"):
        param = solver_message(net_message(listing), f'{field}: "{tmp_path}/net.prototxt"')
        param.ClearField("net_param")
        solver, _ = made(param)
        assert solver.net.name == "small"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('net: "x.prototxt"', "exactly one of net, net_param, train_net, train_net_param, got net and net_param"),
        ("test_iter: 1", "needs a test_interval of at least 1, got 0"),
        ('test_interval: 1 test_net: "a" test_net: "b" test_iter: 1', "once per test net, got 1 for 2 test net"),
        ("test_interval: 1 test_iter: 1 test_state {} test_state {}", r"once per test net \(1\), got 2"),
        ("average_loss: 0", "average_loss must be at least 1, got 0"),
        ("iter_size: 0", "iter_size must be at least 1, got 0"),
        ('lr_policy: "steep"', "lr_policy is 'steep'"),
        ('type: "LBFGS"', "solver type is 'LBFGS'"),
        ("snapshot: 5", "needs a snapshot_prefix, got none"),
        ('snapshot: 5 snapshot_prefix: "/nowhere/at/all"', "cannot write to snapshot_prefix '/nowhere/at/all'.*folder"),
    ],
)
def test_settings_that_cannot_work(listing, text, message):
    with pytest.raises(SolverError, match=message):
        made(solver_message(net_message(listing), text))


def test_no_train_net():
    with pytest.raises(SolverError, match=r"exactly one of net, .* got none"):
        made(caffe_pb2.SolverParameter(base_lr=1, lr_policy="fixed"))


def test_test_iter_beyond_the_named_nets_needs_a_generic_net(listing):
    param = solver_message(net_message(listing), "test_interval: 1 test_iter: 1")
    param.train_net_param.CopyFrom(param.net_param)
    param.ClearField("net_param")
    with pytest.raises(SolverError, match="got 1 for 0 test net"):
        made(param)


def test_a_missing_solver_file(tmp_path):
    with pytest.raises(SpecError, match="no such file"):
        made(tmp_path / "solver.prototxt")


def test_a_test_layer_that_cannot_share(listing):
    net = net_message(listing)
    other = net_message(listing)
    other.layer[1].inner_product_param.num_output = 7
    param = solver_message(net, "test_interval: 1 test_iter: 1")
    param.test_net_param.add().CopyFrom(other)
    with pytest.raises(NetError, match=r"layer 'fc1' cannot share its parameters.*\(7 x 3, 7\) here.*\(5 x 3, 5\)"):
        made(param)


def test_weights_to_start_from(listing, tmp_path):
    source, _ = made(solver_message(net_message(listing), "random_seed: 77"))
    source.net.save(tmp_path / "a.caffemodel")
    with torch.no_grad():
        source.net.params["fc1"][1].fill_(9)
    source.net.save(tmp_path / "b.caffemodel.h5")
    text = f'test_interval: 1 test_iter: 1 weights: "{tmp_path}/a.caffemodel , {tmp_path}/b.caffemodel.h5"'
    solver, recorder = made(solver_message(net_message(listing), text))
    assert all(torch.equal(a, b) for a, b in zip(values(solver), values(source), strict=True))
    loaded = [event.path for event in recorder.of(events.WeightsLoaded)]
    assert loaded == [f"{tmp_path}/a.caffemodel", f"{tmp_path}/b.caffemodel.h5"] * 2
