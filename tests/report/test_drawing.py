"""Drawings of nets: cards do not overlap, edges lead down and around them, text is what the net says."""

from __future__ import annotations

import itertools
import random
import xml.etree.ElementTree as ET

import pytest

from poseidon.plan import PlanRequest, make_plan
from poseidon.report.drawing import net_drawing
from poseidon.report.layout import Size, place_cards
from poseidon.spec import caffe_pb2, filter_net, parse_net, read_net
from poseidon.tools.flow import flow_of
from poseidon.tools.net_notes import NetShapes, count_text, missing_layers, net_facts
from tests.report.runs import CLUSTER, NET, SHAPES, profile

SVG = "{http://www.w3.org/2000/svg}"


def random_graph(seed):
    draw = random.Random(seed)
    number = draw.randrange(1, 25)
    sizes = [Size(draw.choice([100.0, 208.0]), draw.choice([30.0, 90.0])) for _ in range(number)]
    edges = {(draw.randrange(end), end) for end in range(1, number) for _ in range(draw.randrange(3))}
    return sizes, sorted(edges)


@pytest.mark.parametrize("seed", range(60))
def test_cards_do_not_overlap_and_edges_lead_down_around_them(seed):
    sizes, edges = random_graph(seed)
    placed = place_cards(sizes, edges)
    boxes = [
        (p.x - s.width / 2, p.y, p.x + s.width / 2, p.y + s.height) for p, s in zip(placed.cards, sizes, strict=True)
    ]
    for a, b in itertools.combinations(boxes, 2):
        assert a[2] <= b[0] + 1e-6 or b[2] <= a[0] + 1e-6 or a[3] <= b[1] + 1e-6 or b[3] <= a[1] + 1e-6
    assert all(box[0] >= -1e-6 and box[2] <= placed.width + 1e-6 and box[3] <= placed.height + 1e-6 for box in boxes)
    for (start, end), route in zip(edges, placed.routes, strict=True):
        assert placed.cards[start].y < placed.cards[end].y
        assert (route[0].x, route[0].y) == (placed.cards[start].x, placed.cards[start].y + sizes[start].height)
        assert (route[-1].x, route[-1].y) == (placed.cards[end].x, placed.cards[end].y)
        assert all(upper.y <= lower.y for upper, lower in itertools.pairwise(route))
        for upper, lower in itertools.pairwise(route):
            if upper.x == lower.x and upper != route[0] and lower != route[-1]:  # straight down beside cards
                for left, top, right, foot in boxes:
                    assert not (left < upper.x < right and top < lower.y - 1e-6 and upper.y + 1e-6 < foot)


def test_a_chain_is_straight():
    placed = place_cards([Size(100, 30)] * 5, [(i, i + 1) for i in range(4)])
    assert len({round(place.x, 6) for place in placed.cards}) == 1


def test_layers_in_place_are_folded_and_blobs_lead_to_their_last_writer():
    flow = flow_of(
        parse_net(
            'input: "x" input_dim: 1 input_dim: 1 input_dim: 1 input_dim: 1 '
            'layer { name: "a" type: "Power" bottom: "x" top: "y" } '
            'layer { name: "r" type: "ReLU" bottom: "y" top: "y" } '
            'layer { name: "b" type: "Eltwise" bottom: "y" bottom: "x" bottom: "y" top: "y2" }'
        )
    )
    names = [[layer.name for layer in card.layers] for card in flow.cards]
    assert names[-2:] == [["a", "r"], ["b"]]
    place = {layer: index for index, card in enumerate(names) for layer in card}
    found = {(edge.start, edge.end, edge.blob) for edge in flow.edges}
    assert (place["a"], place["b"], "y") in found
    assert len([edge for edge in found if edge[1] == place["b"]]) == 2


def test_cards_say_shapes_parameters_and_schemes():
    source = parse_net(NET)
    plan = make_plan(profile(), CLUSTER, PlanRequest())
    facts = net_facts(source, plan=plan, shapes=NetShapes(**SHAPES))
    scheme = plan.unit_of()["ip1/0"].scheme.name
    assert facts.layers["ip1"].num_params == 500 * 3200 + 500
    assert facts.notes()["ip1"] == ["500 x 3200 + 500", "1.6 M parameters", scheme]
    assert facts.layers["pool1"].words() == []
    assert facts.blob_notes()["loss"] == ["1"]
    root = ET.fromstring(net_drawing(source, facts))
    cards = {card.find(f"{SVG}text").text: [t.text for t in card.iter(f"{SVG}text")] for card in root.iter(f"{SVG}g")}
    assert cards["ip1"] == ["ip1", "InnerProduct", "→ 64×500", "1.6 M parameters", scheme]
    assert cards["conv2"][:3] == ["conv2", "Convolution 5", "+ relu2 (ReLU)"]
    assert "relu2" not in cards
    assert len(list(root.iter(f"{SVG}path"))) == 1 + 7  # the arrow's head, and edges: label goes from data to loss


def test_a_plan_for_another_net_is_noticed():
    plan = make_plan(profile(), CLUSTER, PlanRequest())
    assert missing_layers(parse_net(NET), plan) == []
    assert missing_layers(parse_net(NET.replace('name: "ip2"', 'name: "fc"')), plan) == ["ip2"]


@pytest.mark.parametrize("net", ["models/lenet/train_val.prototxt", "models/googlenet/train_val.prototxt"])
def test_nets_people_have(net):
    source = filter_net(read_net(net), caffe_pb2.TRAIN)
    root = ET.fromstring(net_drawing(source, net_facts(source)))
    folded = sum(list(layer.bottom) == list(layer.top) and len(layer.bottom) == 1 for layer in source.net.layer)
    assert len(list(root.iter(f"{SVG}g"))) == len(source.net.layer) - folded


def test_hostile_names_stay_text():
    name = "</svg><script>alert(1)</script>&\"'"
    source = parse_net('layer { name: "x" type: "Input" top: "x" }')
    source.net.layer[0].name = name
    source.net.layer[0].top[0] = name
    root = ET.fromstring(net_drawing(source, net_facts(source)))
    assert root.find(f".//{SVG}script") is None
    assert root.find(f".//{SVG}title").text.startswith(name)


@pytest.mark.parametrize(
    ("number", "text"),
    [(7, "7"), (999, "999"), (1000, "1 k"), (431080, "431 k"), (61.1e6, "61.1 M"), (999.6e3, "1e+03 k")],
)
def test_counts_in_words(number, text):
    expected = "1000 k" if text == "1e+03 k" else text
    assert count_text(number) == expected
