"""Multiplications counted by loops, and measuring that leaves no trace."""

from __future__ import annotations

import itertools

import pytest
import torch

from poseidon.net import Net
from poseidon.run.layer_times import LayerTime, estimated_times, measured_times, multiplications, scaled_times

NET = """
layer { name: "data" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 4 dim: 9 dim: 7 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "c"
    convolution_param { num_output: 6 kernel_size: 3 pad: 1 stride: 2 group: 2 } }
layer { name: "relu" type: "ReLU" bottom: "c" top: "c" }
layer { name: "deconv" type: "Deconvolution" bottom: "c" top: "d"
    convolution_param { num_output: 4 kernel_size: 2 stride: 2 group: 2 } }
layer { name: "fc" type: "InnerProduct" bottom: "d" top: "y" inner_product_param { num_output: 5 axis: 2 } }
layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1 }
"""


def counted_in_loops() -> dict[str, int]:
    conv = sum(
        1
        for _n, _o, _h, _w in itertools.product(range(2), range(6), range(5), range(4))
        for _c, _kh, _kw in itertools.product(range(4 // 2), range(3), range(3))
    )
    deconv = sum(
        1
        for _n, _c, _h, _w in itertools.product(range(2), range(6), range(5), range(4))
        for _o, _kh, _kw in itertools.product(range(4 // 2), range(2), range(2))
    )
    fc = sum(1 for _row, _o, _i in itertools.product(range(2 * 4), range(5), range(10 * 8)))
    return {"data": 0, "conv": conv, "relu": 0, "deconv": deconv, "fc": fc, "loss": 0}


def test_multiplications():
    net = Net.from_text(NET, phase="TRAIN", seed=0)
    assert {node.layer.name: multiplications(node, net) for node in net.graph.nodes} == counted_in_loops()


def test_recurrent_layers_use_their_weights_once_per_step_and_stream():
    net = Net.from_text(
        """layer { name: "x" type: "DummyData" top: "x" top: "cont" dummy_data_param {
               shape { dim: 5 dim: 3 dim: 4 } shape { dim: 5 dim: 3 } } }
           layer { name: "lstm" type: "LSTM" bottom: "x" bottom: "cont" top: "h" recurrent_param { num_output: 7 } }""",
        phase="TRAIN",
        seed=0,
    )
    assert multiplications(net.graph.nodes[1], net) == 5 * 3 * (28 * 4 + 28 * 7)


def test_estimate_counts_two_flop_and_backward_what_it_has_to_do():
    net = Net.from_text(NET, phase="TRAIN", seed=0)
    by_name = dict(zip([node.layer.name for node in net.graph.nodes], estimated_times(net, 1e6), strict=True))
    counts = counted_in_loops()
    assert by_name["conv"] == LayerTime(2 * counts["conv"] / 1e6, 2 * counts["conv"] / 1e6)  # the data needs none
    assert by_name["fc"] == LayerTime(2 * counts["fc"] / 1e6, 4 * counts["fc"] / 1e6)
    assert by_name["relu"] == LayerTime(0, 0)


def test_scaling_keeps_proportions():
    times = scaled_times([LayerTime(1, 2), LayerTime(0, 5)], 4.0)
    assert times == [LayerTime(0.5, 1.0), LayerTime(0.0, 2.5)]


def test_scaling_nothing_shares_alike():
    times = scaled_times([LayerTime(), LayerTime()], 3.0)
    assert sum(t.forward_s + t.backward_s for t in times) == pytest.approx(3.0)
    assert times[0] == times[1]


class TestMeasuring:
    text = """
    layer { name: "data" type: "DummyData" top: "x" top: "cont" dummy_data_param {
        shape { dim: 2 dim: 3 dim: 4 } shape { dim: 2 dim: 3 }
        data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }
    layer { name: "bn" type: "BatchNorm" bottom: "x" top: "b" }
    layer { name: "drop" type: "Dropout" bottom: "b" top: "b" }
    layer { name: "lstm" type: "LSTM" bottom: "b" bottom: "cont" top: "h" recurrent_param {
        num_output: 5 weight_filler { type: "xavier" } } }
    layer { name: "fc" type: "InnerProduct" bottom: "h" top: "y" inner_product_param {
        num_output: 3 axis: 2 weight_filler { type: "xavier" } } }
    layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1 }
    """

    def trained(self, *, measured: bool) -> list[torch.Tensor]:
        """Outputs and parameters after two passes, with or without measuring between them."""
        net = Net.from_text(self.text, phase="TRAIN", seed=3)
        seen = []
        for _ in range(2):
            net().loss.backward()
            if measured:
                measured_times(net, num_passes=2)
            seen += [entry.value.detach().clone() for entry in net.learnable]
            seen += [entry.value.grad.clone() for entry in net.learnable if entry.value.grad is not None]
            seen.append(torch.tensor(net.draws.clock))
        return seen

    def test_leaves_no_trace(self):
        for plain, measured in zip(self.trained(measured=False), self.trained(measured=True), strict=True):
            assert torch.equal(plain, measured)

    def test_times_what_computes_and_not_what_feeds(self):
        net = Net.from_text(self.text, phase="TRAIN", seed=3)
        by_name = dict(zip([node.layer.name for node in net.graph.nodes], measured_times(net), strict=True))
        assert by_name["data"] == LayerTime(0.0, 0.0)
        for name in ("bn", "lstm", "fc", "loss"):
            assert by_name[name].forward_s > 0, name
            assert by_name[name].backward_s > 0, name
        assert all(entry.value.grad is None for entry in net.learnable)

    def test_output_files_are_not_written(self, tmp_path):
        target = tmp_path / "out.h5"
        text = self.text + (
            'layer { name: "out" type: "HDF5Output" bottom: "y" bottom: "cont" '
            f'hdf5_output_param {{ file_name: "{target}" }} }}'
        )
        net = Net.from_text(text, phase="TRAIN", seed=3)
        before = target.stat().st_size if target.exists() else None
        measured_times(net, num_passes=1)
        assert (target.stat().st_size if target.exists() else None) == before


def test_python_layers_are_not_called(tmp_path, monkeypatch):
    """They may count, or write: nobody but the user knows."""
    (tmp_path / "traces.py").write_text(
        "import caffe\n"
        "class Traces(caffe.Layer):\n"
        "    calls = 0\n"
        "    def reshape(self, bottom, top): top[0].reshape(*bottom[0].shape)\n"
        "    def forward(self, bottom, top): Traces.calls += 1\n"
        "    def backward(self, top, down, bottom): Traces.calls += 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    python = 'layer { name: "p" type: "Python" bottom: "y" top: "z" python_param { module: "traces" layer: "Traces" } }'
    text = NET.replace('bottom: "y" top: "loss"', 'bottom: "z" top: "loss"')
    net = Net.from_text(text.replace('layer { name: "loss"', f'{python} layer {{ name: "loss"'), phase="TRAIN")
    times = measured_times(net)
    import traces

    assert traces.Traces.calls == 0
    assert times[-2] == LayerTime()
    assert times[-1].forward_s > 0
