from __future__ import annotations

import pytest

from poseidon.spec import nearest, nearest_name

KNOWN = ["Convolution", "InnerProduct", "ReLU", "PReLU"]


@pytest.mark.parametrize(
    ("name", "match"),
    [("Convolutoin", "Convolution"), ("relu", "ReLU"), ("INNERPRODUCT", "InnerProduct"), ("xyz", None), ("", None)],
)
def test_nearest_name(name: str, match: str | None) -> None:
    assert nearest_name(name, KNOWN) == match
    assert nearest(name, KNOWN) == (f" (did you mean '{match}'?)" if match else "")


def test_nothing_is_near_without_names() -> None:
    assert nearest("x", []) == ""
