"""Profiles of built nets: structure, sharing, what learns, and in which layers parameters are read."""

from __future__ import annotations

import pytest

from models.generate import bench_text
from poseidon.errors import NetError
from poseidon.net import Net
from poseidon.plan import FactorShape, NetProfile, ParamProfile, RowShape
from poseidon.run.layer_times import LayerTime
from poseidon.run.profile import profile_net


def profiled(text: str, iter_size: int = 1, **options) -> NetProfile:
    net = Net.from_text(text, phase="TRAIN", seed=0)
    times = [LayerTime(0.1 * (i + 1), 0.2 * (i + 1)) for i in range(len(net.graph.nodes))]
    return profile_net(net, times, iter_size=iter_size, **options)


def params(profile: NetProfile) -> dict[str, ParamProfile]:
    return {param.name: param for param in profile.params}


def data(*shape: int) -> str:
    dims = " ".join(f"dim: {n}" for n in shape)
    return f'layer {{ name: "data" type: "DummyData" top: "x" dummy_data_param {{ shape {{ {dims} }} }} }}'


def inner_product(name: str, bottom: str, top: str, options: str, head: str = "") -> str:
    return (
        f'layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{top}" {head} '
        f"inner_product_param {{ {options} }} }}"
    )


def loss(*bottoms: str) -> str:
    return "".join(
        f'layer {{ name: "loss_{b}" type: "Reduction" bottom: "{b}" top: "loss_{b}" loss_weight: 1 }}' for b in bottoms
    )


class TestInnerProduct:
    def test_rows_are_the_axes_before_axis(self):
        net = data(6, 5, 4) + inner_product("fc", "x", "y", "num_output: 3 axis: 2") + loss("y")
        found = params(profiled(net))
        assert found["fc/0"].factors == FactorShape(30, 3, 4)
        assert found["fc/0"].shape == (3, 4)
        assert found["fc/1"].rides_with == "fc/0"
        assert found["fc/1"].factors is None

    def test_negative_axis(self):
        net = data(6, 5, 4) + inner_product("fc", "x", "y", "num_output: 3 axis: -1") + loss("y")
        assert params(profiled(net))["fc/0"].factors == FactorShape(30, 3, 4)

    def test_transposed_weight(self):
        net = data(6, 20) + inner_product("fc", "x", "y", "num_output: 3 transpose: true") + loss("y")
        found = params(profiled(net))["fc/0"]
        assert found.shape == (20, 3)
        assert found.factors == FactorShape(6, 3, 20)

    def test_iter_size_adds_rows_and_time_between(self):
        net = data(6, 20) + inner_product("fc", "x", "y", "num_output: 3") + loss("y")
        once, thrice = profiled(net), profiled(net, iter_size=3)
        assert params(thrice)["fc/0"].factors == FactorShape(18, 3, 20)
        assert once.between_s == 0
        assert thrice.between_s == pytest.approx(2 * once.compute_s)
        assert thrice.compute_s == pytest.approx(3 * once.compute_s)

    def test_shared_weight_and_bias(self):
        shares = 'param { name: "w" } param { name: "b" }'
        net = (
            data(6, 4)
            + inner_product("one", "x", "y", "num_output: 4", shares)
            + inner_product("two", "y", "z", "num_output: 4", shares)
            + loss("z")
        )
        profile = profiled(net)
        found = params(profile)
        assert set(found) == {"one/0", "one/1"}
        assert found["one/0"].factors == FactorShape(12, 4, 4)
        assert found["one/1"].rides_with == "one/0"
        assert [layer.params for layer in profile.layers if layer.params] == [("one/0", "one/1")] * 2

    def test_shared_weight_with_biases_of_their_own(self):
        """Σ of u's rows over both layers is neither bias's gradient."""
        net = (
            data(6, 4)
            + inner_product("one", "x", "y", "num_output: 4", 'param { name: "w" }')
            + inner_product("two", "y", "z", "num_output: 4", 'param { name: "w" }')
            + loss("z")
        )
        found = params(profiled(net))
        assert found["one/0"].factors == FactorShape(12, 4, 4)
        assert found["one/1"].rides_with is None
        assert found["two/1"].rides_with is None

    def test_shared_with_a_transposed_one_is_dense(self):
        net = (
            data(6, 4)
            + inner_product("one", "x", "y", "num_output: 4 bias_term: false", 'param { name: "w" }')
            + inner_product("two", "y", "z", "num_output: 4 bias_term: false transpose: true", 'param { name: "w" }')
            + loss("z")
        )
        assert params(profiled(net))["one/0"].factors is None

    def test_shared_with_an_embedding_is_dense(self):
        net = (
            'layer { name: "i" type: "DummyData" top: "i" dummy_data_param { shape { dim: 6 } } }'
            'layer { name: "embed" type: "Embed" bottom: "i" top: "x" param { name: "w" }'
            " embed_param { input_dim: 9 num_output: 4 bias_term: false } }"
            + inner_product("fc", "x", "y", "num_output: 9 bias_term: false", 'param { name: "w" }')
            + loss("y")
        )
        found = params(profiled(net))["embed/0"]
        assert found.factors is None
        assert found.rows is None

    def test_sharer_that_leads_to_no_loss_gives_no_rows(self):
        shares = 'param { name: "w" } param { name: "b" }'
        net = (
            data(6, 4)
            + inner_product("one", "x", "y", "num_output: 4", shares)
            + inner_product("two", "x", "idle", "num_output: 4", shares)
            + 'layer { name: "silence" type: "Silence" bottom: "idle" }'
            + loss("y")
        )
        assert params(profiled(net))["one/0"].factors == FactorShape(6, 4, 4)

    def test_bias_beside_a_frozen_weight(self):
        net = data(6, 4) + inner_product("fc", "x", "y", "num_output: 4", "param { lr_mult: 0 }") + loss("y")
        found = params(profiled(net))
        assert not found["fc/0"].learns
        assert found["fc/1"].learns
        assert found["fc/1"].rides_with is None

    def test_frozen_bias(self):
        net = data(6, 4) + inner_product("fc", "x", "y", "num_output: 4", "param {} param { lr_mult: 0 }") + loss("y")
        found = params(profiled(net))
        assert found["fc/0"].learns
        assert not found["fc/1"].learns
        assert found["fc/1"].rides_with is None


class TestEmbed:
    def net(self, num_indices: int) -> str:
        return (
            f'layer {{ name: "i" type: "DummyData" top: "i" dummy_data_param {{ shape {{ dim: {num_indices} }} }} }}'
            'layer { name: "embed" type: "Embed" bottom: "i" top: "x" embed_param { input_dim: 50 num_output: 4 } }'
            + loss("x")
        )

    def test_rows_are_at_most_the_indices(self):
        found = params(profiled(self.net(6), iter_size=2))
        assert found["embed/0"].rows == RowShape(12, 4, 50)
        assert found["embed/1"].rows is None

    def test_and_at_most_the_table(self):
        assert params(profiled(self.net(600)))["embed/0"].rows == RowShape(50, 4, 50)


class TestNets:
    def test_alexnet(self):
        profile = profiled(bench_text("alexnet", 3))
        found = params(profile)
        assert len(found) == 16
        assert sum(param.num_elems for param in found.values()) == 60_965_224
        assert {name: p.factors for name, p in found.items() if p.factors} == {
            "fc6/0": FactorShape(3, 4096, 9216),
            "fc7/0": FactorShape(3, 4096, 4096),
            "fc8/0": FactorShape(3, 1000, 4096),
        }
        assert {name: p.rides_with for name, p in found.items() if p.rides_with} == {
            f"fc{i}/1": f"fc{i}/0" for i in (6, 7, 8)
        }

    def test_statistics_do_not_learn(self):
        found = params(profiled(bench_text("resnet50", 1)))
        still = {name for name, param in found.items() if not param.learns}
        assert len(still) == 53 * 3
        assert all(name.startswith("bn") for name in still)

    def test_what_leads_to_no_loss_does_not_learn(self):
        net = (
            data(6, 4)
            + inner_product("used", "x", "y", "num_output: 4")
            + inner_product("idle", "x", "z", "num_output: 4")
            + 'layer { name: "silence" type: "Silence" bottom: "z" }'
            + loss("y")
        )
        assert {name: param.learns for name, param in params(profiled(net)).items()} == {
            "used/0": True,
            "used/1": True,
            "idle/0": False,
            "idle/1": False,
        }

    def test_double_precision(self):
        import torch

        net = Net.from_text(bench_text("lenet", 1), phase="TRAIN", dtype=torch.float64, seed=0)
        profile = profile_net(net, [LayerTime()] * len(net.graph.nodes), needs_all_gradients=True)
        assert {param.elem_bytes for param in profile.params} == {8}
        assert profile.needs_all_gradients

    def test_names_that_cannot_be_told_apart(self):
        net = (
            data(6, 4)
            + inner_product("fc", "x", "y", "num_output: 4")
            + inner_product("fc", "y", "z", "num_output: 4")
            + loss("z")
        )
        with pytest.raises(NetError, match="several layers with parameters are called 'fc'; workers need names"):
            profiled(net)
