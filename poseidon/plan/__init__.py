"""The communication plan: decided before the run, by arithmetic alone.

    profile (the net) + cluster ── planner ── plan ── simulate

Nothing here computes with tensors, opens sockets or looks at a clock.
"""

from __future__ import annotations

from poseidon.plan.cluster import PAYLOAD_SHARE, Cluster, parse_bandwidth, parse_nodes, parse_seconds
from poseidon.plan.commplan import GPI, PATTERNS, STALE_SCHEMES, WIRES, CommPlan, Scheme, Send, Unit, parse_scheme
from poseidon.plan.cost import Cost, CostModel, Load
from poseidon.plan.fits import check_fits
from poseidon.plan.flows import Flow, flows_of
from poseidon.plan.order import Order
from poseidon.plan.planner import make_plan
from poseidon.plan.profile import FactorShape, LayerProfile, NetProfile, ParamProfile, RowShape
from poseidon.plan.request import Override, PlanRequest, parse_overrides
from poseidon.plan.simulate import Event, Timeline, simulate
from poseidon.plan.sweep import Axis, Point, Setting, parse_sweep, sweep
from poseidon.plan.sweep_table import sweep_json, sweep_text
from poseidon.plan.table import PlanTable, plan_table
from poseidon.plan.turns import Lane, Ticket, Turns, patience_s, turns_of

__all__ = [
    "GPI",
    "PATTERNS",
    "PAYLOAD_SHARE",
    "STALE_SCHEMES",
    "WIRES",
    "Axis",
    "Cluster",
    "CommPlan",
    "Cost",
    "CostModel",
    "Event",
    "FactorShape",
    "Flow",
    "Lane",
    "LayerProfile",
    "Load",
    "NetProfile",
    "Order",
    "Override",
    "ParamProfile",
    "PlanRequest",
    "PlanTable",
    "Point",
    "RowShape",
    "Scheme",
    "Send",
    "Setting",
    "Ticket",
    "Timeline",
    "Turns",
    "Unit",
    "check_fits",
    "flows_of",
    "make_plan",
    "parse_bandwidth",
    "parse_nodes",
    "parse_overrides",
    "parse_scheme",
    "parse_seconds",
    "parse_sweep",
    "patience_s",
    "plan_table",
    "simulate",
    "sweep",
    "sweep_json",
    "sweep_text",
    "turns_of",
]
