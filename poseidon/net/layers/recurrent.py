"""Recurrent: what LSTM and RNN share. A layer over T time steps of N independent streams.

    bottom 0   x        T × N × …           step t of all streams, then step t + 1, …
    bottom 1   cont     T × N               0 where a stream begins a new sequence: its state is multiplied by it
    bottom 2   static   N × …               optional: the same input at every step
    further             1 × N × D           the states before step 1, with expose_hidden
    top 0               T × N × D           D = num_output
    further             1 × N × D           the states after step T, with expose_hidden

Without expose_hidden the states after step T are where the next forward pass begins. Gradients stop at the first
step: none goes to `cont`, to given states, or into the previous pass; nor does one come in by the states' tops.

The inputs of all steps are projected in one product before the steps are run. A stream count that shrinks keeps the
first streams' states, one that grows starts from zero; the number of steps may change freely.

`recurrent_param.debug_info` is about the log of Caffe's inner net; there is no inner net here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from poseidon.net.layer import Count, Layer, Shape, between, count_of, exactly, text_of


class Recurrent(Layer):
    """Base of LSTM and RNN. Blobs: the input's weight and bias, the static input's weight, then the subclass's own."""

    unforced_bottoms = frozenset({1})
    num_states: ClassVar[int]
    num_gates: ClassVar[int]

    # -- to be written by each kind ---------------------------------------------------------------------------------
    @abstractmethod
    def add_step_params(self) -> None:
        """Makes the blobs that the steps use, after those of the inputs."""

    @abstractmethod
    def run_steps(
        self, x: Tensor, static: Tensor | None, cont: Tensor, states: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """From x (T × N × I), the static input (N × S) and the states (N × D): top 0, and the states after step T."""

    # -- options ----------------------------------------------------------------------------------------------------
    @property
    def exposes_states(self) -> bool:
        return self.spec.recurrent_param.expose_hidden

    @property
    def num_exposed(self) -> int:
        return self.num_states if self.exposes_states else 0

    @property
    def has_static(self) -> bool:
        return len(self.spec.bottom) > 2 + self.num_exposed

    def check_counts(self) -> None:
        exposed = self.num_exposed
        self._check_count("takes", "bottom", between(2 + exposed, 3 + exposed), len(self.spec.bottom))
        self._check_count("gives", "top", exactly(1 + exposed), len(self.spec.top))

    def _check_count(self, verb: str, what: str, expected: Count, got: int) -> None:
        if not expected.admits(got):
            setting = "with" if self.exposes_states else "without"
            raise self.error(f"{verb} {expected} {what} blob(s) {setting} expose_hidden, got {got}")

    # -- shapes -----------------------------------------------------------------------------------------------------
    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options = self.spec.recurrent_param
        if options.num_output < 1:
            raise self.error(f"recurrent_param.num_output must be at least 1, got {options.num_output}")
        self._check_bottoms(bottom_shapes)
        rows = self.num_gates * options.num_output
        self.add_param((rows, count_of(bottom_shapes[0], 2)), options.weight_filler)
        self.add_param((rows,), options.bias_filler)
        if self.has_static:
            self.add_param((rows, count_of(bottom_shapes[2], 1)), options.weight_filler)
        self.add_step_params()
        self.reset_state()

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        self._check_bottoms(bottom_shapes)
        self._check_inputs("the input", count_of(bottom_shapes[0], 2), self.param_shapes[0][1])
        if self.has_static:
            self._check_inputs("the static input", count_of(bottom_shapes[2], 1), self.param_shapes[2][1])
        num_steps, num_streams = bottom_shapes[0][:2]
        num_output = self.spec.recurrent_param.num_output
        return [(num_steps, num_streams, num_output), *[(1, num_streams, num_output)] * self.num_exposed]

    def _check_bottoms(self, shapes: Sequence[Shape]) -> None:
        x, cont = shapes[:2]
        if len(x) < 3:
            raise self.error(f"bottom 0 needs at least 3 axes, steps x streams x …, got shape {text_of(x)}")
        if x[0] < 1:
            raise self.error(f"needs at least one step, got bottom 0 of shape {text_of(x)}")
        if cont != x[:2]:
            raise self.error(f"bottom 1 (cont) must be steps x streams, {text_of(x[:2])}, got {text_of(cont)}")
        rest = list(shapes[2:])
        if self.has_static:
            static = rest.pop(0)
            if len(static) < 2 or static[0] != x[1]:
                raise self.error(f"bottom 2 (static) must be {x[1]} streams x …, got shape {text_of(static)}")
        expected = (1, x[1], self.spec.recurrent_param.num_output)
        for index, state in enumerate(rest, start=len(shapes) - len(rest)):
            if state != expected:
                raise self.error(f"bottom {index} is a state and must be {text_of(expected)}, got {text_of(state)}")

    def _check_inputs(self, what: str, got: int, expected: int) -> None:
        if got != expected:
            raise self.error(f"{what} was built for {expected} values per step and stream, got {got}")

    # -- running ----------------------------------------------------------------------------------------------------
    def reset_state(self) -> None:
        """Forgets what the last forward pass left; the next one begins from zero."""
        self._states: list[Tensor] = []

    def carried(self) -> list[Tensor]:
        """For a snapshot: the states the next forward pass begins from; none if it begins from zero."""
        return list(self._states)

    def carry(self, states: list[Tensor]) -> None:
        """Begins the next forward pass from these."""
        self._states = list(states)

    def forward(self, x: Tensor, cont: Tensor, *rest: Tensor) -> Tensor | tuple[Tensor, ...]:
        static = rest[0].flatten(1) if self.has_static else None
        if self.exposes_states:
            states = [state.detach()[0] for state in rest[-self.num_states :]]
        else:
            states = self._carried(x)
        top, states = self.run_steps(x.flatten(2), static, cont.detach(), states)
        states = [state.detach() for state in states]
        if self.exposes_states:
            return (top, *[state.unsqueeze(0) for state in states])
        self._states = [state.clone() for state in states]  # a view would keep all steps of this pass in memory
        return top

    def projected(self, x: Tensor, static: Tensor | None) -> Tensor:
        """What the inputs add to the gates at every step: T × N × gates · D."""
        by_step = F.linear(x, self.param(0), self.param(1))
        return by_step if static is None else by_step + F.linear(static, self.param(2))

    def _carried(self, x: Tensor) -> list[Tensor]:
        num_streams = x.shape[1]
        if self._states and num_streams <= len(self._states[0]):
            return [state[:num_streams].to(x.device) for state in self._states]
        shape = (num_streams, self.spec.recurrent_param.num_output)
        return [torch.zeros(shape, dtype=self.param(0).dtype, device=x.device) for _ in range(self.num_states)]


def interrupted(cont: Tensor) -> list[bool]:
    """For every step: does any stream's state change by being multiplied with `cont`?"""
    return (cont != 1).any(1).tolist()
