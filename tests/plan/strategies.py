"""Random nets and clusters, small enough to be searched whole."""

from __future__ import annotations

from hypothesis import strategies as st

from poseidon.plan import Cluster, FactorShape, LayerProfile, NetProfile, ParamProfile, RowShape

seconds = st.floats(0, 0.05).map(lambda s: round(s, 6))


@st.composite
def params_of_layer(draw, name: str) -> list[ParamProfile]:
    """A convolution, an inner product with or without a bias, an embedding, statistics, or nothing."""
    kind = draw(st.sampled_from(["conv", "fc", "fc", "embed", "statistics", "nothing"]))
    elem_bytes = draw(st.sampled_from([4, 4, 8]))
    m, n = draw(st.integers(1, 900)), draw(st.integers(1, 900))
    if kind == "conv":
        return [ParamProfile(f"{name}/0", (m, n, 3), elem_bytes)]
    if kind == "fc":
        factors = FactorShape(draw(st.integers(1, 64)), m, n)
        weight = ParamProfile(f"{name}/0", (m, n), elem_bytes, factors=factors)
        bias = ParamProfile(f"{name}/1", (m,), elem_bytes, rides_with=f"{name}/0")
        return [weight, bias] if draw(st.booleans()) else [weight]
    if kind == "embed":
        rows = RowShape(draw(st.integers(1, m)), n, m)
        return [ParamProfile(f"{name}/0", (m, n), elem_bytes, rows=rows)]
    if kind == "statistics":
        return [ParamProfile(f"{name}/0", (m,), elem_bytes, learns=False)]
    return []


@st.composite
def profiles(draw, max_layers: int = 4) -> NetProfile:
    """Up to `max_layers` layers; later ones may share what earlier ones have."""
    params: list[ParamProfile] = []
    layers = []
    for index in range(draw(st.integers(1, max_layers))):
        own = draw(params_of_layer(f"layer{index}"))
        shared = draw(st.sampled_from(params)) if params and draw(st.integers(0, 4)) == 0 else None
        read = [param.name for param in own] + ([shared.name] if shared else [])
        layers.append(LayerProfile(f"layer{index}", draw(seconds), draw(seconds), tuple(read)))
        params += own
    between_s = draw(st.sampled_from([0.0, 0.0, 0.013]))
    return NetProfile(tuple(layers), tuple(params), draw(st.booleans()), between_s)


@st.composite
def clusters(draw, one_worker_per_node: bool = False) -> Cluster:
    most = 1 if one_worker_per_node else 3
    nodes = draw(st.lists(st.integers(1, most), min_size=1, max_size=4).map(tuple))
    return Cluster(
        node_workers=nodes,
        bandwidth_bps=draw(st.sampled_from([1e8, 1e9, 1e10])),
        latency_s=draw(st.sampled_from([0.0, 1e-4, 2e-3])),
        overhead_s=draw(st.sampled_from([0.0, 5e-4])),
        send_s=draw(st.sampled_from([0.0, 1e-4])),
        collective_s=draw(st.sampled_from([0.0, 3e-4])),
        local_bps=draw(st.sampled_from([1e9, 8e10])),
        flops=draw(st.sampled_from([1e9, 1e12, float("inf")])),
        update_bps=draw(st.sampled_from([1e9, float("inf")])),
    )
