"""Prototxt against protobuf's own reader, and every error by its words."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from google.protobuf import text_format
from google.protobuf.message import Message
from hypothesis import example, given, settings
from hypothesis import strategies as st

from poseidon.errors import SpecError
from poseidon.spec import format_message, parse
from poseidon.spec.caffe_pb2 import BlobProto, Datum, NetParameter, SolverParameter
from poseidon.spec.text import parse_located
from tests.spec.messages import messages

GOLDEN = Path(__file__).parents[1] / "golden"
PROTOTXTS = sorted(GOLDEN.rglob("*.prototxt"))


def kind_of(path: Path) -> type[Message]:
    return SolverParameter if path.name.startswith("solver") or path.parent.name.startswith("solver_") else NetParameter


@pytest.mark.parametrize("path", PROTOTXTS, ids=lambda path: str(path.relative_to(GOLDEN)))
def test_files_read_as_protobuf_reads_them(path: Path) -> None:
    text = path.read_text()
    assert parse(text, kind_of(path)()) == text_format.Parse(text, kind_of(path)())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment",
        "\ufeffname: 'bom'",
        'name: "a" \'b\'  "c"',
        "layer { name: 'x' }; layer: { name: 'y' }, layer < name: 'z' >",
        "layer [ { name: 'x' }, < name: 'y' > ] layer: []",
        "layer { bottom: ['a', \"b\"] bottom: 'c'; top: [] }",
        "layer{name:'x'loss_weight:1 loss_weight:.5 loss_weight:2.}",
        "layer { loss_weight: [1e-5, 1.5e+3, 2f, 3.25F, 7e2f, 0, -0, -1] }",
        "layer { loss_weight: [inf, -inf, Infinity, -INF] }",
        "layer { loss_weight: [1e39, -1e300, 1e-60] }",
        "input_dim: [0, 10, -10, 0x1F, 0X1f, 017, -017, 2147483647, -2147483648]",
        "force_backward: true debug_info: f",
        "force_backward: 1 debug_info: False",
        "force_backward: t debug_info: 0",
        "layer { phase: TEST include { phase: 0 } } layers { type: 35 }",
        r"name: '\n\t\\\'\"\a\b\f\v\r\101\x41\xe2\x82\xac\342\202\254'",
        "name: 'Zürich €'",
        "name: 'a#b' # 'c'\nlayer { # {\n}",
        "layer { blobs { shape { dim: -1 dim: 9223372036854775807 } data: 1 } }",
        "\r\n\t\v\f name\r\n:\r\n'x'\r\n",
    ],
)
def test_syntax_is_protobufs(text: str) -> None:
    # protobuf's Python reader does not know the byte order mark and the old infinity spellings; C++ does
    expected = text_format.Parse(text.removeprefix("\ufeff").replace("-INF", "-inf"), NetParameter())
    assert parse(text, NetParameter()) == expected


def test_nan() -> None:
    assert math.isnan(parse("layer { loss_weight: nan }", NetParameter()).layer[0].loss_weight[0])


def test_bytes_need_not_be_utf8() -> None:
    assert parse(r"data: '\377\x00a'", Datum()).data == b"\xff\x00a"


def test_escapes_that_only_the_cpp_reader_knows() -> None:
    assert parse(r"name: '\?'", NetParameter()).name == "?"
    assert parse(r"name: '\u00fc\U0001F600'", NetParameter()).name == "ü😀"


ERRORS = [
    ("nam: 'x'", "1:1: found 'nam', expected a field of NetParameter; did you mean 'name'?"),
    ("layer {\n  tpye: 'ReLU'\n}", "2:3: found 'tpye', expected a field of LayerParameter; did you mean 'type'?"),
    (
        "layer {\n convolution_param {\n  kernel_sise: 3",
        "3:3: found 'kernel_sise', expected a field of ConvolutionParameter; did you mean 'kernel_size'?",
    ),
    ("qqqqqq: 1", "1:1: found 'qqqqqq', expected a field of NetParameter"),
    ("base_lr: 0.1", "1:1: found 'base_lr', expected a field of NetParameter; is this a solver?"),
    (
        "layer { dropout_ratio: 0.5 }",
        "1:9: found 'dropout_ratio', expected a field of LayerParameter; it belongs in dropout_param",
    ),
    (
        "layer { pooling_param { pool: MEX } }",
        "1:31: found 'MEX', expected one of MAX, AVE, STOCHASTIC for 'pool'; did you mean 'MAX'?",
    ),
    (
        "layer { pooling_param { pool: 'max' } }",
        "1:31: found 'max', expected one of MAX, AVE, STOCHASTIC for 'pool'; did you mean 'MAX'?",
    ),
    ("layer { phase: 7 }", "1:16: found '7', expected one of TRAIN, TEST for 'phase'"),
    ("name: 'a'\nname: 'b'", "2:1: found a second 'name', expected 'name' at most once in NetParameter"),
    (
        "layer { relu_param {}\n relu_param {} }",
        "2:2: found a second 'relu_param', expected 'relu_param' at most once in LayerParameter",
    ),
    (
        "input_dim: 3000000000",
        "1:12: found '3000000000', expected an integer from -2147483648 to 2147483647 for 'input_dim'",
    ),
    ("input_dim: 1.5", "1:12: found '1.5', expected an integer from -2147483648 to 2147483647 for 'input_dim'"),
    ("input_dim: 1dim", "1:12: found '1dim', expected an integer from -2147483648 to 2147483647 for 'input_dim'"),
    ("input_dim: 08", "1:12: found '08', expected an integer from -2147483648 to 2147483647 for 'input_dim'"),
    (
        "layer { pooling_param { stride: -1 } }",
        "1:33: found '-1', expected an integer from 0 to 4294967295 for 'stride'",
    ),
    ("layer { loss_weight: 'x' }", "1:22: found 'x', expected a number for 'loss_weight'"),
    ("layer { loss_weight: 010 }", "1:22: found '010', expected a number for 'loss_weight'"),
    ("layer { loss_weight: +1 }", "1:22: found '+', expected a number for 'loss_weight'"),
    ("layer { loss_weight: 1.2.3 }", "1:22: found '1.2.3', expected a number for 'loss_weight'"),
    ("force_backward: ture", "1:17: found 'ture', expected true or false for 'force_backward'"),
    ("force_backward: -1", "1:17: found '-1', expected true or false for 'force_backward'"),
    ("layer { type: ReLU }", "1:15: found 'ReLU', expected a string in quotes for 'type'"),
    ("name: 'x", "1:7: found a string that opens with ', expected a closing ' on the same line"),
    ('name: "x\n"', '1:7: found a string that opens with ", expected a closing " on the same line'),
    (r"name: '\q'", r"1:7: found \q, expected UTF-8 text and escapes of C in the string for 'name'"),
    (r"name: '\400'", r"1:7: found \400, expected UTF-8 text and escapes of C in the string for 'name'"),
    (r"name: '\x'", r"1:7: found \x, expected UTF-8 text and escapes of C in the string for 'name'"),
    (r"name: '\ud800'", r"1:7: found \ud800, expected UTF-8 text and escapes of C in the string for 'name'"),
    (r"name: '\U00110000'", r"1:7: found \U00110000, expected UTF-8 text and escapes of C in the string for 'name'"),
    (r"name: '\377'", "1:7: found byte 0xff, expected UTF-8 text in the string for 'name'"),
    ("name: '\udcff'", "1:7: found byte 0xff, expected UTF-8 text in the string for 'name'"),
    ("name: '\ud800'", r"1:7: found '\ud800', expected UTF-8 text and escapes of C in the string for 'name'"),
    ("name 'x'", "1:6: found 'x', expected ':' after 'name'"),
    ("name:", "1:6: found the end of the text, expected a string in quotes for 'name'"),
    ("layer: 5", "1:8: found '5', expected '{' to open 'layer', a LayerParameter"),
    (
        "layer { name: 'x' ",
        "1:19: found the end of the text, expected a field of LayerParameter, or the '}' that closes 'layer' of line 1",
    ),
    (
        "\nlayer { name: 'x' >",
        "2:19: found '>', expected a field of LayerParameter, or the '}' that closes 'layer' of line 2",
    ),
    ("layer {}}", "1:9: found '}', expected a field of NetParameter"),
    ("layer { bottom: ['a' 'b', ] }", "1:27: found ']', expected a string in quotes for 'bottom'"),
    ("input_dim: [1 2]", "1:15: found '2', expected ',' or ']' in the list of 'input_dim'"),
    ("name: ['x']", "1:7: found '[', expected a string in quotes for 'name'"),
    ("[caffe.extension]: 1", "1:1: found '[', expected a field of NetParameter"),
    ("100 { name: 'x' }", "1:1: found '100', expected a field of NetParameter"),
    ("layer { clip_param { min: 1 } }", "1:29: found '}', expected 'max' before it: ClipParameter requires it"),
    ("name: 'x' @", "1:11: found '@', expected a name, a number, a string or one of { } < > [ ] : ; ,"),
    ("ñame: 'x'", "1:1: found 'ñ', expected a name, a number, a string or one of { } < > [ ] : ; ,"),
    ("\0", "1:1: found byte 0x00, expected text in UTF-8; is this a binary file? Weights and states are not text"),
    ("\udcff", "1:1: found byte 0xff, expected text in UTF-8; is this a binary file? Weights and states are not text"),
]


@pytest.mark.parametrize(("text", "message"), ERRORS, ids=range(len(ERRORS)))
def test_errors_name_place_found_and_expected(text: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        parse(text, NetParameter(), "net.prototxt")
    assert str(error.value) == f"net.prototxt:{message}"


def test_a_net_given_as_a_solver() -> None:
    with pytest.raises(SpecError, match=r"found 'layer', expected a field of SolverParameter; is this a net\?"):
        parse("layer {}", SolverParameter())


@pytest.mark.parametrize(
    "text",
    [
        "layer {" * 100_000,
        "[" * 100_000,
        "layer: " + "[" * 100_000,
        "name: " + "'" * 100_001,
        "input_dim: " + "9" * 1_000_000,
        "layer { loss_weight: " + "1" * 1_000_000 + "e }",
        "a" * 1_000_000 + ": 1",
        "name: '" + "\\" * 1_000_001 + "'",
        "-" * 100_000,
        "layer {}" * 200_001,
    ],
    ids=["nesting", "brackets", "lists", "quotes", "integer", "float", "name", "escapes", "signs", "messages"],
)
def test_hostile_texts_are_refused(text: str) -> None:
    with pytest.raises(SpecError) as error:
        parse(text, NetParameter())
    assert len(str(error.value)) < 300


def test_long_numbers_are_floats_all_the_same() -> None:
    text = "layer { loss_weight: 0." + "3" * 100_000 + " }"
    assert parse(text, NetParameter()).layer[0].loss_weight[0] == pytest.approx(1 / 3)


def test_comments_may_hold_any_bytes() -> None:
    text = b"# gr\xfc\xdfe \x00\nname: 'x'".decode("utf-8", "surrogateescape")
    assert parse(text, NetParameter()).name == "x"


def test_lines_of_the_fields_at_the_top() -> None:
    text = "name: 'n'\n\nlayer { }\nlayer: [\n{ },\n{ } ] input: ['a',\n 'b']\nlayer\n{ }"
    assert parse_located(text, NetParameter()) == {"name": [1], "layer": [3, 5, 6, 8], "input": [6, 7]}


@given(messages(NetParameter) | messages(SolverParameter) | messages(BlobProto) | messages(Datum))
@settings(max_examples=300, deadline=None)
def test_what_is_written_reads_back(message: Message) -> None:
    text = format_message(message)
    assert parse(text, type(message)()) == message
    assert text_format.Parse(text, type(message)()) == message


@given(messages(NetParameter))
@settings(max_examples=100, deadline=None)
def test_what_protobuf_writes_reads_back(message: Message) -> None:
    for options in (
        {},
        {"as_one_line": True},
        {"as_utf8": True},
        {"pointy_brackets": True},
        {"use_short_repeated_primitives": True},
    ):
        text = text_format.MessageToString(message, **options)
        assert parse(text, NetParameter()) == message


WORDS = ["layer", "name", "input_dim", "loss_weight", "blobs", "relu_param", "phase", "nonsense"]
PIECES = st.sampled_from(
    [*WORDS, *"{}<>[]:;,.+#'\"\\", " ", "\n", "0x1f", "1", "-1", "1e9", "'x'", '"y"', "true", "\0"]
)


@given(st.text() | st.lists(PIECES, max_size=30).map("".join) | st.lists(PIECES, max_size=30).map(" ".join))
@example("layer{blobs{")
@settings(max_examples=500, deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        message = parse(text, NetParameter())
    except SpecError:
        return
    assert parse(format_message(message), NetParameter()) == message


@given(st.lists(PIECES, max_size=12).map(" ".join))
@settings(max_examples=500, deadline=None)
def test_nothing_is_accepted_that_protobuf_refuses(text: str) -> None:
    try:
        message = parse(text, NetParameter())
    except SpecError:
        return
    assert text_format.Parse(text, NetParameter()) == message
