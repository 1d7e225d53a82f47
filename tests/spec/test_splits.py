"""Splits against the edges Caffe logs when it builds a net, and against nets worked out by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from poseidon.errors import SpecError
from poseidon.spec import filter_net, insert_splits, parse_net, read_net
from poseidon.spec.caffe_pb2 import TEST, TRAIN, LayerParameter, Phase

GOLDEN = Path(__file__).parents[1] / "golden"
LOGS = GOLDEN / "formats" / "logs"


def logged_edges(log: str) -> list[str]:
    """`layer <- blob` and `layer -> blob` of the first net in a log, in the order of building."""
    first_net = log.split("Network initialization done")[0]
    return re.findall(r"net\.cpp:\d+\] (\S+ (?:<-|->) \S+)", first_net)


def edges(layers: list[LayerParameter]) -> list[str]:
    return [
        f"{layer.name} {arrow} {blob}"
        for layer in layers
        for arrow, blobs in (("<-", layer.bottom), ("->", layer.top))
        for blob in blobs
    ]


@pytest.mark.parametrize(("log", "phase"), [("test", TEST), ("time", TRAIN), ("train", TRAIN)])
def test_edges_are_caffes(log: str, phase: Phase) -> None:
    net = insert_splits(filter_net(read_net(LOGS / log / "net.prototxt"), phase)).net
    expected = logged_edges((LOGS / log / "expected.log").read_text())
    # Caffe also logs tops a layer makes for itself; the nets here name theirs.
    assert edges(list(net.layer)) == expected


def test_the_logs_do_contain_splits() -> None:
    assert any("_split_" in edge for edge in logged_edges((LOGS / "test" / "expected.log").read_text()))


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize("path", sorted(GOLDEN.glob("nets/*/net.prototxt")), ids=lambda path: path.parent.name)
def test_afterwards_every_blob_is_read_at_most_once(path: Path, phase: Phase) -> None:
    split = insert_splits(filter_net(read_net(path), phase))
    unread: set[str] = set()
    for layer in split.net.layer:
        for blob in layer.bottom:
            unread.remove(blob)
        unread.update(layer.top)
    assert insert_splits(split) == split
    assert len(split.lines) == len(split.net.layer)
    assert all(split.lines)


def split_text(text: str) -> list[str]:
    return edges(list(insert_splits(parse_net(text)).net.layer))


def test_a_top_read_three_times() -> None:
    text = """layer { name: "d" top: "x" top: "y" }
              layer { name: "a" bottom: "y" top: "a" }
              layer { name: "b" bottom: "y" bottom: "x" bottom: "y" top: "b" }"""
    assert split_text(text) == [
        *("d -> x", "d -> y"),
        *(
            "y_d_1_split <- y",
            "y_d_1_split -> y_d_1_split_0",
            "y_d_1_split -> y_d_1_split_1",
            "y_d_1_split -> y_d_1_split_2",
        ),
        *("a <- y_d_1_split_0", "a -> a"),
        *("b <- y_d_1_split_1", "b <- x", "b <- y_d_1_split_2", "b -> b"),
    ]


def test_behind_an_in_place_layer_the_top_is_that_layers() -> None:
    text = """layer { name: "c" top: "c" } layer { name: "r" bottom: "c" top: "c" }
              layer { name: "a" bottom: "c" top: "a" } layer { name: "b" bottom: "c" top: "b" }"""
    assert split_text(text) == [
        *("c -> c", "r <- c", "r -> c"),
        *("c_r_0_split <- c", "c_r_0_split -> c_r_0_split_0", "c_r_0_split -> c_r_0_split_1"),
        *("a <- c_r_0_split_0", "a -> a", "b <- c_r_0_split_1", "b -> b"),
    ]


def layers_of(text: str) -> dict[str, LayerParameter]:
    return {layer.name: layer for layer in insert_splits(parse_net(text)).net.layer}


def test_a_loss_that_is_read_moves_its_weight_to_copy_0() -> None:
    layers = layers_of('layer { name: "l" top: "l" loss_weight: 3 } layer { name: "a" bottom: "l" top: "a" }')
    assert list(layers["l_l_0_split"].loss_weight) == [3, 0]
    assert list(layers["l"].loss_weight) == []
    assert list(layers["a"].bottom) == ["l_l_0_split_1"]


def test_a_loss_read_twice() -> None:
    layers = layers_of(
        'layer { name: "l" top: "l" loss_weight: 3 } layer { name: "a" bottom: "l" top: "a" }'
        'layer { name: "b" bottom: "l" top: "b" }'
    )
    assert list(layers["l_l_0_split"].loss_weight) == [3, 0, 0]
    assert [*layers["a"].bottom, *layers["b"].bottom] == ["l_l_0_split_1", "l_l_0_split_2"]


@pytest.mark.parametrize("weights", ["", "loss_weight: 0"])
def test_a_top_without_loss_weight_read_once_is_not_split(weights: str) -> None:
    text = f'layer {{ name: "l" top: "l" {weights} }} layer {{ name: "a" bottom: "l" top: "a" }}'
    assert list(layers_of(text)) == ["l", "a"]


def test_splitting_one_loss_clears_the_weights_of_the_other_tops_as_caffe_does() -> None:
    layers = layers_of(
        'layer { name: "l" top: "x" top: "y" loss_weight: 2 loss_weight: 5 } layer { name: "a" bottom: "x" top: "a" }'
    )
    assert list(layers["l"].loss_weight) == []
    assert list(layers["x_l_0_split"].loss_weight) == [2, 0]


def test_two_losses_both_read() -> None:
    layers = layers_of(
        'layer { name: "l" top: "x" top: "y" loss_weight: 2 loss_weight: 5 }'
        'layer { name: "a" bottom: "x" bottom: "y" top: "a" }'
    )
    assert list(layers["x_l_0_split"].loss_weight) == [2, 0]
    assert list(layers["y_l_1_split"].loss_weight) == [5, 0]
    assert list(layers["a"].bottom) == ["x_l_0_split_1", "y_l_1_split_1"]


def test_splits_stand_on_their_producers_line() -> None:
    source = parse_net(
        'layer { name: "d" top: "x" }\nlayer { name: "a" bottom: "x" top: "a" }\n'
        'layer { name: "b" bottom: "x" top: "b" }'
    )
    assert insert_splits(source).lines == (1, 1, 2, 3)


def test_unknown_bottom() -> None:
    source = parse_net(
        'layer { name: "d" top: "data" }\nlayer { name: "c" bottom: "data" bottom: "dota" }', "n.prototxt"
    )
    with pytest.raises(SpecError) as error:
        insert_splits(source)
    assert str(error.value) == (
        "n.prototxt:2: Unknown bottom blob 'dota' (layer 'c', bottom index 1) (did you mean 'data'?)"
    )


def test_a_top_made_only_later_is_unknown() -> None:
    with pytest.raises(SpecError, match=r"Unknown bottom blob 'x' \(layer 'a', bottom index 0\)$"):
        insert_splits(parse_net('layer { name: "a" bottom: "x" } layer { name: "b" top: "x" }'))


def test_two_producers() -> None:
    source = parse_net('layer { name: "a" top: "x" }\n\nlayer { name: "b" top: "x" }', "n.prototxt")
    with pytest.raises(SpecError) as error:
        insert_splits(source)
    assert str(error.value) == (
        "n.prototxt:3: Top blob 'x' produced by multiple sources: by layer 'b' here and by layer 'a' at n.prototxt:1; "
        "give the top of 'b' another name"
    )


def test_one_layer_with_one_name_for_two_tops() -> None:
    with pytest.raises(SpecError, match="Top blob 'x' produced by multiple sources"):
        insert_splits(parse_net('layer { name: "a" top: "x" top: "x" }'))


def test_in_place_needs_the_same_position() -> None:
    with pytest.raises(SpecError, match="Top blob 'y' produced by multiple sources"):
        insert_splits(
            parse_net('layer { name: "a" top: "x" top: "y" } layer { name: "b" bottom: "x" bottom: "y" top: "y" }')
        )


def test_overwriting_what_others_read() -> None:
    source = parse_net(
        'layer { name: "a" top: "x" }\nlayer { name: "r" bottom: "x" top: "x" }\n'
        'layer { name: "c" bottom: "x" top: "c" }'
    )
    insert_splits(source)  # the reader behind the in-place layer is fine
    source = parse_net(
        'layer { name: "a" top: "x" }\nlayer { name: "c" bottom: "x" top: "c" }\n'
        'layer { name: "r" bottom: "x" top: "x" }'
    )
    with pytest.raises(
        SpecError, match=r":3: Top blob 'x' .*'a' at <text>:1, and other layers read it too; give the top of 'r'"
    ):
        insert_splits(source)
