"""The rules by Caffe's names for them."""

from __future__ import annotations

from poseidon.errors import SolverError
from poseidon.solver.rules.adadelta import AdaDelta
from poseidon.solver.rules.adagrad import AdaGrad
from poseidon.solver.rules.adam import Adam
from poseidon.solver.rules.nesterov import Nesterov
from poseidon.solver.rules.rmsprop import RMSProp
from poseidon.solver.rules.rule import Rule
from poseidon.solver.rules.sgd import SGD
from poseidon.spec import caffe_pb2, nearest

RULES: dict[str, type[Rule]] = {rule.type: rule for rule in (SGD, Nesterov, AdaGrad, RMSProp, AdaDelta, Adam)}


def rule_for(param: caffe_pb2.SolverParameter) -> Rule:
    """The rule a solver's `type` names, once its settings are found to fit it."""
    found = RULES.get(param.type)
    if found is None:
        raise SolverError(
            f"solver type is {param.type!r}{nearest(param.type, RULES)}, expected one of: {', '.join(RULES)}"
        )
    rule = found()
    rule.check(param)
    return rule
