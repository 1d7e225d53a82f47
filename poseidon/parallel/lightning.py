"""A strategy for PyTorch Lightning: Parallel in place of DistributedDataParallel. Needs the extra `lightning`.

    from poseidon.parallel.lightning import PoseidonStrategy

    trainer = lightning.Trainer(accelerator="cpu", devices=4, strategy=PoseidonStrategy())

Lightning reads and clips gradients between backward and step, so it trains without `overlap`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from poseidon.errors import UsageError
from poseidon.parallel.parallel import Parallel

try:
    from lightning.pytorch.strategies import DDPStrategy
except ImportError as error:
    raise UsageError("the Lightning strategy needs Lightning: pip install 'poseidon-dl[lightning]'") from error


class PoseidonStrategy(DDPStrategy):
    """`options` are those of Parallel: find_unused_parameters, schemes, wire, …"""

    def __init__(self, options: dict[str, Any] | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        if self._ddp_kwargs:
            raise UsageError(
                f"PoseidonStrategy takes Parallel's options as a dictionary, got {', '.join(self._ddp_kwargs)}: write "
                "PoseidonStrategy({'find_unused_parameters': True})"
            )
        self._options = options or {}

    def _setup_model(self, model: nn.Module) -> Any:
        return Parallel(model, **self._options)

    def _register_ddp_hooks(self) -> None:
        """Schemes and wires are Parallel's options; torch's hooks have nothing to do."""

    def pre_backward(self, closure_loss: Tensor) -> None:
        """Parallel notices by itself."""

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        with self.model.no_sync() if isinstance(self.model, Parallel) else contextlib.nullcontext():
            yield

    def teardown(self) -> None:
        if isinstance(self.model, Parallel):
            self.model.close()
        super().teardown()
