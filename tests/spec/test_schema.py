"""The generated schema against the facts about Caffe's, field by field."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor

from poseidon.spec import caffe_pb2

FACTS = json.loads((Path(__file__).parent / "caffe_schema.json").read_text())
FORKS = json.loads((Path(__file__).parent / "fork_schema.json").read_text())
MESSAGES = {**FACTS["messages"], **FORKS["messages"]}
for extended, added in (("LayerParameter", "layer_parameter"), ("ConvolutionParameter", "convolution_parameter")):
    stock = FACTS["messages"][extended]
    MESSAGES[extended] = {**stock, "fields": stock["fields"] + FORKS[added]}
FILE = descriptor_pb2.FileDescriptorProto()
caffe_pb2.DESCRIPTOR.CopyToProto(FILE)
GENERATED = {message.name: message for message in FILE.message_type}
# Ours, under numbers that stock Caffe leaves free.
ADDITIONS = {("DataParameter", "shared_file_system"), ("ImageDataParameter", "shared_file_system")}
Field = descriptor_pb2.FieldDescriptorProto


def type_name(field: Field) -> str:
    if field.type_name:
        return field.type_name.rsplit(".", 1)[-1]
    return Field.Type.Name(field.type).removeprefix("TYPE_").lower()


def test_it_is_proto2_in_caffes_package() -> None:
    assert FILE.package == FACTS["package"]
    assert FILE.syntax in ("", FACTS["syntax"])  # descriptors leave proto2 out


def test_the_messages_are_caffes_and_its_forks() -> None:
    assert set(GENERATED) == set(MESSAGES)
    assert len(FACTS["messages"]) == 63
    assert not set(FACTS["messages"]) & set(FORKS["messages"])


@pytest.mark.parametrize("name", MESSAGES)
def test_fields(name: str) -> None:
    expected = {}
    for number, field, label, kind, *extra in MESSAGES[name]["fields"]:
        options = extra[0] if extra else {}
        default = options.get("default", "")
        if kind in ("float", "double") and default:
            default = np.float32(default)
        expected[field] = (number, label, kind, default, options.get("packed", False))
    actual = {}
    for field in GENERATED[name].field:
        if (name, field.name) in ADDITIONS:
            continue
        label = Field.Label.Name(field.label).removeprefix("LABEL_").lower()
        default = field.default_value
        if type_name(field) in ("float", "double") and default:
            default = np.float32(default)
        actual[field.name] = (field.number, label, type_name(field), default, field.options.packed)
    assert actual == expected


def enums(descriptors: list[descriptor_pb2.EnumDescriptorProto]) -> dict[str, dict[str, int]]:
    return {enum.name: {value.name: value.number for value in enum.value} for enum in descriptors}


@pytest.mark.parametrize("name", MESSAGES)
def test_nested_enums(name: str) -> None:
    assert enums(list(GENERATED[name].enum_type)) == MESSAGES[name].get("enums", {})


def test_top_level_enums() -> None:
    assert enums(list(FILE.enum_type)) == FACTS["enums"]


@pytest.mark.parametrize(("message", "field"), sorted(ADDITIONS))
def test_our_additions_stay_clear_of_stock_numbers(message: str, field: str) -> None:
    (ours,) = [f for f in GENERATED[message].field if f.name == field]
    assert (type_name(ours), ours.default_value) == ("bool", "false")
    assert ours.number not in {number for number, *_ in FACTS["messages"][message]["fields"]}
    assert ours.number >= 1000


def test_the_generated_module_is_that_of_the_proto_file() -> None:
    text = (Path(caffe_pb2.__file__).parent / "caffe.proto").read_text()
    written = {}
    for name, body in re.findall(r"^message (\w+) \{\n(.*?)^\}", text, re.DOTALL | re.MULTILINE):
        fields = re.findall(r"^  (optional|required|repeated) (?:\w+\.)?(\w+) (\w+) = (\d+)", body, re.MULTILINE)
        written[name] = {(label, kind, field, int(number)) for label, kind, field, number in fields}
    generated = {
        name: {
            (Field.Label.Name(field.label).removeprefix("LABEL_").lower(), type_name(field), field.name, field.number)
            for field in message.field
        }
        for name, message in GENERATED.items()
    }
    assert written == generated


def test_no_message_contains_itself() -> None:
    """The text parser recurses along the schema and relies on this."""

    def depth(descriptor: Descriptor, above: tuple[str, ...]) -> int:
        assert descriptor.full_name not in above
        inner = [f.message_type for f in descriptor.fields if f.message_type is not None]
        return 1 + max((depth(child, (*above, descriptor.full_name)) for child in inner), default=0)

    assert max(depth(message, ()) for message in caffe_pb2.DESCRIPTOR.message_types_by_name.values()) <= 6


def test_the_package_imports_without_torch() -> None:
    code = "import sys, poseidon.spec; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
