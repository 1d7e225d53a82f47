"""Net: building, its errors by layer and line, shapes, what it keeps alive, and the options of running."""

from __future__ import annotations

import weakref

import pytest
import torch
import torch.nn.functional as F

from poseidon.errors import NetError, SpecError, UsageError
from poseidon.net import Net, Stepwise
from poseidon.spec import caffe_pb2, parse_net

INPUT = 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }\n'
CONV = """layer { name: "conv" type: "Convolution" bottom: "x" top: "c"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } bias_filler { value: 0.1 } } }
"""
RELU = 'layer { name: "relu" type: "ReLU" bottom: "c" top: "c" }\n'
IP = """layer { name: "ip" type: "InnerProduct" bottom: "c" top: "y"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
"""
LABEL = 'layer { name: "label" type: "Input" top: "t" input_param { shape { dim: 2 } } }\n'
LOSS = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "t" top: "loss" }\n'
SMALL = INPUT + CONV + RELU + IP
TRAINING = LABEL + SMALL + LOSS


def by_hand(net: Net, x: torch.Tensor) -> torch.Tensor:
    """SMALL in plain torch."""
    (conv, conv_bias), (ip, ip_bias) = net.params["conv"], net.params["ip"]
    return F.linear(F.relu(F.conv2d(x, conv, conv_bias)).flatten(1), ip, ip_bias)


def images(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, 8, 8, generator=torch.Generator().manual_seed(3))


class TestBuilding:
    def test_from_text_a_message_and_a_file(self, tmp_path):
        path = tmp_path / "net.prototxt"
        path.write_text(SMALL)
        message = caffe_pb2.NetParameter()
        message.CopyFrom(parse_net(SMALL).net)
        nets = [Net.from_text(SMALL, seed=1), Net(path, seed=1), Net(str(path), seed=1), Net(message, seed=1)]
        x = images()
        for net in nets:
            assert torch.equal(net(x=x)["y"], nets[0](x=x)["y"])

    def test_numbers_are_those_of_plain_torch(self):
        net = Net.from_text(SMALL)
        torch.testing.assert_close(net(x=images())["y"], by_hand(net, images()))

    def test_names_are_caffes(self):
        shared = SMALL + 'layer { name: "sum" type: "Reduction" bottom: "c" top: "s" reduction_param { axis: 1 } }'
        net = Net.from_text(shared)
        assert list(net.layers) == ["in", "conv", "relu", "c_relu_0_split", "ip", "sum"]
        assert net.inputs == ["x"]
        assert net.outputs == ["y", "s"]
        assert net.blob_shapes["c_relu_0_split_1"] == (2, 4, 6, 6)
        assert [tuple(p.shape) for p in net.params["ip"]] == [(5, 144), (5,)]

    def test_layer_names_that_modules_refuse(self):
        text = SMALL.replace('"ip"', '"a.b/c"').replace('name: "conv"', 'name: "forward"')
        net = Net.from_text(text)
        assert set(net.params) == {"forward", "a.b/c"}
        assert {key.rsplit(".", 1)[0] for key in net.state_dict()} == {"forward", "a_b/c"}

    def test_phase_level_and_stages(self):
        text = SMALL + (
            'layer { name: "only" type: "Softmax" bottom: "y" top: "p"'
            ' include { phase: TEST min_level: 2 stage: "deploy" } }'
        )
        assert "only" not in Net.from_text(text, phase="TRAIN", level=2, stages=["deploy"]).layers
        assert "only" not in Net.from_text(text, phase="TEST", level=1, stages=["deploy"]).layers
        assert "only" not in Net.from_text(text, phase="TEST", level=2).layers
        assert "only" in Net.from_text(text, phase=caffe_pb2.TEST, level=2, stages=["deploy"]).layers

    def test_blobs_inside_the_definition_are_the_start(self):
        source = parse_net(INPUT + CONV)
        weight = source.net.layer[1].blobs.add()
        weight.shape.dim.extend([4, 3, 3, 3])
        weight.data.extend([0.5] * 108)
        bias = source.net.layer[1].blobs.add()
        bias.shape.dim.append(4)
        bias.data.extend([7.0] * 4)
        net = Net(source)
        assert net.params["conv"][0].eq(0.5).all()
        assert net.params["conv"][1].eq(7).all()


class TestBuildingErrors:
    @pytest.mark.parametrize(
        ("text", "error", "message"),
        [
            (INPUT + CONV.replace('bottom: "x"', 'bottom: "z"'), SpecError, r"<text>:2: Unknown bottom blob 'z'"),
            (SMALL + CONV.replace('"conv"', '"two"'), SpecError, r":7: Top blob 'c' produced by multiple"),
            (INPUT + CONV.replace("Convolution", "Convolutoin"), NetError, r":2: layer 'conv': unknown layer type"),
            (INPUT + CONV.replace("Convolution", "Convolutoin"), NetError, r"did you mean 'Convolution'"),
            (INPUT + CONV.replace("kernel_size: 3", "kernel_size: 30"), NetError, r":2: layer 'conv' \(Convolution\)"),
            (INPUT + CONV.replace("xavier", "xaver"), NetError, r"layer 'conv'.*unknown filler type 'xaver'"),
            (INPUT + 'layer { name: "r" type: "ReLU" top: "y" }', NetError, r"takes 1 bottom blob\(s\), got 0"),
            (INPUT + 'layer { name: "r" type: "ReLU" bottom: "x" }', NetError, r"gives 1 top blob\(s\), got 0"),
            (TRAINING.replace('bottom: "y" bottom: "t"', 'bottom: "y" bottom: "t" propagate_down: true'), NetError,
             r"propagate_down needs one entry per bottom \(2\), got 1"),
            (SMALL.replace('top: "y"', 'top: "y" loss_weight: 1 loss_weight: 2'), NetError,
             r"loss_weight needs one entry per top \(1\), got 2"),
            (SMALL.replace('top: "y"', 'top: "y" param {} param {} param {}'), NetError,
             r"has 2 parameter blob\(s\), got 3 `param` entries"),
        ],
    )  # fmt: skip
    def test_name_the_layer_and_its_line(self, text, error, message):
        with pytest.raises(error, match=message):
            Net.from_text(text)

    def test_an_unknown_phase(self):
        with pytest.raises(UsageError, match="phase must be TRAIN or TEST, got 'VALIDATE'"):
            Net.from_text(SMALL, phase="VALIDATE")


class TestInputs:
    def test_a_new_shape_is_carried_through(self):
        net = Net.from_text(INPUT + CONV)
        assert net(x=torch.zeros(7, 3, 5, 9))["c"].shape == (7, 4, 3, 7)
        assert net.blob_shapes["c"] == (7, 4, 3, 7)

    def test_a_shape_that_does_not_fit_changes_nothing(self):
        net = Net.from_text(SMALL)
        with pytest.raises(NetError, match=r"layer 'ip' \(InnerProduct\): was built for 144 inputs"):
            net(x=torch.zeros(2, 3, 9, 9))
        assert net.blob_shapes["x"] == (2, 3, 8, 8)
        assert net(x=images())["y"].shape == (2, 5)

    def test_reshape_by_hand(self):
        net = Net.from_text(INPUT + CONV)
        net.reshape(x=(1, 3, 4, 4))
        assert net.blob_shapes["c"] == (1, 4, 2, 2)
        with pytest.raises(NetError, match="blob 'c' is not an input"):
            net.reshape(c=(1,))

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({}, "missing: x"),
            ({"x": torch.zeros(2, 3, 8, 8), "z": torch.zeros(1)}, "unknown: z"),
            ({"x": [[1.0]]}, "input 'x' must be a torch tensor, got list"),
        ],
    )
    def test_missing_unknown_and_foreign(self, given, message):
        with pytest.raises(NetError, match=message):
            Net.from_text(SMALL)(given)

    def test_inputs_are_never_overwritten(self):
        net = Net.from_text(INPUT + 'layer { name: "r" type: "ReLU" bottom: "x" top: "x" }')
        x = images()
        before = x.clone()
        torch.testing.assert_close(net(x=x)["x"], before.relu())
        assert torch.equal(x, before)


class TestKeeping:
    def test_blobs_asked_for_are_returned(self):
        net = Net.from_text(SMALL)
        assert set(net(x=images())) == {"y"}
        kept = net(x=images(), keep=["c"])
        torch.testing.assert_close(kept["c"], F.relu(F.conv2d(images(), *net.params["conv"])))

    def test_a_blob_that_fusion_leaves_out(self):
        text = INPUT + (
            'layer { name: "bn" type: "BatchNorm" bottom: "x" top: "n" }'
            'layer { name: "sc" type: "Scale" bottom: "n" top: "s" scale_param { bias_term: true } }'
        )
        net = Net.from_text(text, phase="TRAIN", dtype=torch.float64)
        kept = net(x=images(), keep=["n"])
        x = images().double()
        mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), unbiased=False, keepdim=True)
        torch.testing.assert_close(kept["n"], (x - mean) / (variance + 1e-5).sqrt())
        torch.testing.assert_close(kept["s"], kept["n"])

    def test_an_unknown_blob(self):
        with pytest.raises(NetError, match="no blob 'nothing'"):
            Net.from_text(SMALL)(x=images(), keep=["nothing"])

    def test_activations_end_with_their_last_reader(self):
        net = Net.from_text(
            SMALL.replace(RELU, RELU.replace('top: "c"', 'top: "d"')).replace(
                'bottom: "c" top: "y"', 'bottom: "d" top: "y"'
            )
        )
        made: list[weakref.ref] = []
        net.layers["conv"].register_forward_hook(lambda layer, given, top: made.append(weakref.ref(top)))
        gone: list[bool] = []
        net.layers["ip"].register_forward_hook(lambda layer, given, top: gone.append(made[0]() is None))
        with torch.no_grad():
            net(x=images())
        assert gone == [True]


class TestTraining:
    def test_the_loss_is_the_weighted_sum(self):
        text = TRAINING.replace('top: "loss"', 'top: "loss" loss_weight: 0.25')
        net = Net.from_text(text, phase="TRAIN")
        out = net(x=images(), t=torch.tensor([1.0, 4.0]))
        want = F.cross_entropy(by_hand(net, images()), torch.tensor([1, 4]))
        torch.testing.assert_close(out["loss"], want)
        torch.testing.assert_close(out.loss, want * 0.25)

    def test_a_loss_weight_on_any_top(self):
        net = Net.from_text(SMALL.replace('top: "y"', 'top: "y" loss_weight: 2'), phase="TRAIN")
        out = net(x=images())
        torch.testing.assert_close(out.loss, by_hand(net, images()).sum() * 2)

    def test_a_net_without_a_loss_takes_part_in_somebody_elses(self):
        net = Net.from_text(SMALL, phase="TEST")
        F.cross_entropy(net(x=images())["y"], torch.tensor([0, 1])).backward()
        want = torch.autograd.grad(F.cross_entropy(by_hand(net, images()), torch.tensor([0, 1])), net.params["conv"][0])
        torch.testing.assert_close(net.params["conv"][0].grad, want[0])

    def test_propagate_down_cuts_the_gradient(self):
        text = TRAINING.replace('bottom: "c" top: "y"', 'bottom: "c" top: "y" propagate_down: false')
        net = Net.from_text(text, phase="TRAIN")
        net(x=images(), t=torch.tensor([1.0, 4.0])).loss.backward()
        assert net.params["conv"][0].grad is None
        assert net.params["ip"][0].grad is not None

    def test_a_rate_of_zero_takes_no_gradient_unless_forced(self):
        frozen = TRAINING.replace('top: "c"\n', 'top: "c" param { lr_mult: 0 } param { lr_mult: 0 }\n', 1)
        net = Net.from_text(frozen, phase="TRAIN")
        net(x=images(), t=torch.tensor([1.0, 4.0])).loss.backward()
        assert net.params["conv"][0].grad is None
        forced = Net.from_text("force_backward: true\n" + frozen, phase="TRAIN")
        forced(x=images(), t=torch.tensor([1.0, 4.0])).loss.backward()
        assert forced.params["conv"][0].grad is not None

    def test_a_branch_without_a_loss_records_nothing(self):
        text = TRAINING + 'layer { name: "side" type: "Power" bottom: "y" top: "side" power_param { power: 2 } }'
        net = Net.from_text(text, phase="TRAIN")
        assert not net(x=images(), t=torch.tensor([1.0, 4.0]))["side"].requires_grad

    def test_labels_that_need_a_gradient_are_refused(self):
        text = TRAINING.replace('bottom: "y" bottom: "t"', 'bottom: "y" bottom: "u"')
        text = text.replace(
            'layer { name: "loss"',
            'layer { name: "s" type: "Scale" bottom: "t" top: "u" scale_param { axis: 0 num_axes: 0 } }\n'
            'layer { name: "loss"',
        )
        net = Net.from_text(text, phase="TRAIN")
        with pytest.raises(NetError, match=r"layer 'loss'.*cannot back-propagate to its label"):
            net(x=images(), t=torch.tensor([1.0, 4.0]))


class TestSharing:
    def shared(self, mode: str = "", second: str = "num_output: 4") -> str:
        return (
            'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 4 } } }\n'
            'layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" param { name: "w" lr_mult: 2 } '
            'inner_product_param { num_output: 4 bias_term: false weight_filler { type: "xavier" } } }\n'
            f'layer {{ name: "b" type: "InnerProduct" bottom: "a" top: "b" param {{ name: "w" {mode} }} '
            f"inner_product_param {{ {second} bias_term: false }} }}"
        )

    def test_one_parameter_two_uses(self):
        net = Net.from_text(self.shared())
        assert net.params["a"][0] is net.params["b"][0]
        assert [(entry.layer, entry.rate, entry.sharers) for entry in net.learnable] == [("a", 2.0, [("b", 0)])]
        x = torch.randn(2, 4)
        net(x=x)["b"].sum().backward()
        w = net.params["a"][0].detach().clone().requires_grad_()
        F.linear(F.linear(x, w), w).sum().backward()
        torch.testing.assert_close(net.params["a"][0].grad, w.grad)

    def test_strict_wants_equal_shapes(self):
        with pytest.raises(
            NetError, match=r"layer 'b'.*shares parameter 'w' with layer 'a', which has 4 x 4; got shape 2 x 4"
        ):
            Net.from_text(self.shared(second="num_output: 2"))

    def test_permissive_wants_equal_counts(self):
        text = self.shared("share_mode: PERMISSIVE", "num_output: 4 transpose: true")
        assert Net.from_text(text)(x=torch.zeros(2, 4))["b"].shape == (2, 4)
        with pytest.raises(NetError, match=r"which has 16; got 8 values \(2 x 4\)"):
            Net.from_text(self.shared("share_mode: PERMISSIVE", "num_output: 2"))

    def test_multipliers_must_agree(self):
        with pytest.raises(NetError, match="which has 2; got lr_mult 3"):
            Net.from_text(self.shared("lr_mult: 3"))


class TestRandomness:
    DROPPED = INPUT + 'layer { name: "d" type: "Dropout" bottom: "x" top: "y" }'

    def test_a_seed_names_fillers_and_masks(self):
        first, second, other = (Net.from_text(SMALL, seed=seed) for seed in (5, 5, 6))
        assert torch.equal(first.params["ip"][0], second.params["ip"][0])
        assert not torch.equal(first.params["ip"][0], other.params["ip"][0])
        one, two = (Net.from_text(self.DROPPED, phase="TRAIN", seed=5) for _ in range(2))
        assert torch.equal(one(x=images())["y"], two(x=images())["y"])
        assert not torch.equal(
            one(x=images())["y"], Net.from_text(self.DROPPED, phase="TRAIN", seed=6)(x=images())["y"]
        )

    def test_adding_a_layer_changes_no_other_filler(self):
        more = SMALL + IP.replace('"ip"', '"more"').replace('top: "y"', 'top: "z"')
        assert torch.equal(Net.from_text(SMALL, seed=2).params["ip"][0], Net.from_text(more, seed=2).params["ip"][0])

    @pytest.mark.parametrize("workers", [2, 3])
    def test_workers_draw_what_one_with_the_whole_batch_would(self, workers):
        whole = Net.from_text(self.DROPPED, phase="TRAIN", seed=9)
        x = images(6)
        want = whole(x=x)["y"]
        for rank in range(workers):
            part = Net.from_text(self.DROPPED, phase="TRAIN", seed=9)
            part.draws.first, part.draws.stride = rank, workers
            assert torch.equal(part(x=x[rank::workers])["y"], want[rank::workers])


class TestOptions:
    @pytest.fixture
    def want(self):
        net = Net.from_text(TRAINING, phase="TRAIN", seed=1)
        out = net(x=images(), t=torch.tensor([1.0, 4.0]))
        out.loss.backward()
        return out.loss.detach(), [parameter.grad.clone() for parameter in net.parameters()]

    def check(self, want, tolerance: float, **options):
        net = Net.from_text(TRAINING, phase="TRAIN", seed=1, **options)
        out = net(x=images(), t=torch.tensor([1.0, 4.0]))
        out.loss.backward()
        torch.testing.assert_close(out.loss.detach().float(), want[0], rtol=tolerance, atol=tolerance)
        for parameter, grad in zip(net.parameters(), want[1], strict=True):
            torch.testing.assert_close(parameter.grad.float(), grad, rtol=tolerance, atol=tolerance)
        return net

    def test_channels_last(self, want):
        net = self.check(want, 1e-5, channels_last=True)
        assert net.params["conv"][0].is_contiguous(memory_format=torch.channels_last)

    def test_autocast(self, want):
        net = self.check(want, 3e-2, autocast=torch.bfloat16)
        assert net(x=images(), t=torch.zeros(2))["loss"].dtype == torch.float32
        assert net(x=images(), t=torch.zeros(2), keep=["c"])["c"].dtype == torch.bfloat16

    def test_compile(self, want):
        self.check(want, 1e-5, compile="aot_eager")

    def test_float64(self, want):
        net = self.check(want, 1e-5, dtype=torch.float64)
        assert net(x=images(), t=torch.zeros(2)).loss.dtype == torch.float64

    def test_another_device(self):
        net = Net.from_text(SMALL).to("meta")
        assert net(x=images())["y"].device.type == "meta"


class TestStepwise:
    def test_partial_passes_use_edited_blobs(self):
        net = Net.from_text(TRAINING, phase="TRAIN")
        run = Stepwise(net)
        run.blobs["x"].data = images()
        run.blobs["t"].data = torch.tensor([1.0, 4.0])
        run.forward()
        run.blobs["c"].data = torch.ones(2, 4, 6, 6)
        loss = run.forward(start=run.index_of("ip"))
        want = F.cross_entropy(F.linear(torch.ones(2, 144), *net.params["ip"]), torch.tensor([1, 4]))
        assert loss == pytest.approx(want.item(), rel=1e-6)
        run.backward(end=run.index_of("ip"))
        assert net.params["conv"][0].grad is None
        assert net.params["ip"][0].grad is not None

    def test_parameter_diffs_accumulate_blob_diffs_do_not(self):
        net = Net.from_text(TRAINING, phase="TRAIN")
        run = Stepwise(net)
        run.blobs["x"].data = images()
        run.blobs["t"].data = torch.tensor([1.0, 4.0])
        run.forward()
        run.backward()
        once, blob = net.params["ip"][0].grad.clone(), run.blobs["c"].diff.clone()
        run.backward()
        torch.testing.assert_close(net.params["ip"][0].grad, once * 2)
        torch.testing.assert_close(run.blobs["c"].diff, blob)

    def test_backward_before_forward_reads_the_blobs_as_they_are(self):
        net = Net.from_text(TRAINING, phase="TRAIN")
        run = Stepwise(net)
        run.blobs["c"].data = torch.ones(2, 4, 6, 6)
        diff = torch.randn(2, 5)
        run.blobs["y"].diff = diff
        run.backward(start=run.index_of("ip"), end=run.index_of("ip"))
        torch.testing.assert_close(net.params["ip"][0].grad, diff.t() @ torch.ones(2, 144))
        torch.testing.assert_close(run.blobs["c"].diff.flatten(1), diff @ net.params["ip"][0])
        assert not run.blobs["y"].data.any()

    def test_backward_makes_no_statistics_and_repeats_no_draw(self):
        net = Net.from_text(
            "force_backward: true\n" + INPUT
            + 'layer { name: "n" type: "BatchNorm" bottom: "x" top: "n" }'
            + 'layer { name: "d" type: "Dropout" bottom: "n" top: "d" }', phase="TRAIN"
        )  # fmt: skip
        run = Stepwise(net)
        run.blobs["x"].data = images()
        run.backward()
        assert not any(blob.any() for blob in net.params["n"])
        run.forward()
        dropped = run.blobs["d"].data == 0
        statistics = [blob.clone() for blob in net.params["n"]]
        with torch.no_grad():
            net.params["n"][0].add_(0)  # somebody has written: the call is made again
        run.blobs["d"].diff = torch.ones(2, 3, 8, 8)
        run.backward()
        assert (run.blobs["n"].diff[dropped] == 0).all()
        torch.testing.assert_close(net.params["n"], statistics)

    def test_a_call_made_again_begins_where_the_first_one_did(self):
        """A recurrent layer's backward after its parameters have been written to, beside one without that."""
        text = (
            'force_backward: true input: "x" input_shape { dim: 3 dim: 2 dim: 4 } '
            'input: "cont" input_shape { dim: 3 dim: 2 } '
            'layer { name: "r" type: "LSTM" bottom: "x" bottom: "cont" top: "y" recurrent_param { num_output: 5 '
            'weight_filler { type: "uniform" min: -1 max: 1 } bias_filler { type: "constant" value: 0.1 } } }'
        )
        diffs = []
        for is_touched in (False, True):
            net = Net.from_text(text, phase="TRAIN", seed=3)
            run = Stepwise(net)
            run.blobs["x"].data = torch.linspace(-1, 1, 24).view(3, 2, 4)
            run.blobs["cont"].data = torch.ones(3, 2)
            run.forward()
            run.forward()
            if is_touched:
                with torch.no_grad():
                    net.params["r"][0].add_(0)
            run.blobs["y"].diff = torch.ones(3, 2, 5)
            run.backward()
            run.forward()
            diffs.append((run.blobs["x"].diff, net.params["r"][2].grad, run.blobs["y"].data))
        torch.testing.assert_close(diffs[0], diffs[1])

    def test_an_unknown_layer(self):
        with pytest.raises(NetError, match="no layer 'nothing'"):
            Stepwise(Net.from_text(SMALL)).index_of("nothing")

    def test_a_watched_blob_keeps_its_memory_in_place_too(self):
        net = Net.from_text(
            "force_backward: true\n" + INPUT
            + 'layer { name: "p" type: "Power" bottom: "x" top: "x2" power_param { power: 2 } }'
            + 'layer { name: "q" type: "Power" bottom: "x2" top: "x2" power_param { power: 3 } }'
        )  # fmt: skip
        run = Stepwise(net)
        run.blobs["x"].data = images()
        array = run.blobs["x2"].data_array()
        run.forward()
        torch.testing.assert_close(torch.from_numpy(array), images() ** 6)
        run.blobs["x2"].diff = torch.ones(2, 3, 8, 8)
        run.backward()
        torch.testing.assert_close(run.blobs["x"].diff, 6 * images() ** 5)
