"""Damaged and hostile input to everything that reads files: it is taken, or refused with one of our own errors."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.choices import Choices
from tests.fuzz.corpus import net_texts, solver_texts
from tests.fuzz.damage import damaged
from tests.fuzz.mutate import mutated
from tests.fuzz.targets import is_refused

FILES = ["weights", "weights_hdf5", "state", "state_hdf5", "sidecar", "datum", "database", "mean", "onnx"]
NUM_EXAMPLES = {"weights_hdf5": 150, "state_hdf5": 150, "database": 150, "onnx": 150}
choosing = st.binary(min_size=4, max_size=40)


def bounded(num_examples: int) -> settings:
    """The same inputs every time: a test that fails does so for everybody."""
    return settings(
        max_examples=num_examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@pytest.mark.parametrize("name", ["net_text", "solver_text", *FILES])
def test_good_input_is_taken(name, targets):
    for seed in targets[name].seeds:
        assert not is_refused(targets[name], seed)


@pytest.mark.parametrize("name", FILES)
def test_damaged_files(name, targets):
    target, refused = targets[name], []

    @bounded(NUM_EXAMPLES.get(name, 300))
    @given(choosing)
    def feed(data: bytes) -> None:
        refused.append(is_refused(target, damaged(target.seeds, Choices(data))))

    feed()
    assert sum(refused) > len(refused) / 10  # damage is noticed; not all of it can be


@pytest.mark.parametrize("name", ["net_text", "solver_text", *FILES])
def test_any_bytes(name, targets):
    @bounded(150)
    @given(st.binary(max_size=200))
    def feed(data: bytes) -> None:
        is_refused(targets[name], data)

    feed()


@pytest.mark.parametrize(("name", "texts"), [("net_text", net_texts()), ("solver_text", solver_texts())])
def test_changed_texts(name, texts, targets):
    refused = []

    @bounded(400)
    @given(choosing, st.booleans())
    def feed(data: bytes, in_bytes: bool) -> None:
        encoded = [text.encode() for text in texts]
        text = damaged(encoded, Choices(data)) if in_bytes else mutated(texts, Choices(data)).encode()
        refused.append(is_refused(targets[name], text))

    feed()
    assert 0 < sum(refused) < len(refused)


@pytest.mark.parametrize(("name", "num_examples"), [("net_build", 1000), ("solver_build", 300)])
def test_changed_nets_and_solvers_are_built_and_run(name, num_examples, targets):
    refused = []

    @bounded(num_examples)
    @given(st.binary(min_size=5, max_size=16))
    def feed(data: bytes) -> None:
        refused.append(is_refused(targets[name], data))

    feed()
    assert sum(refused) < 0.95 * len(refused)  # enough of them are still nets
