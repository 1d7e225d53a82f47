"""KeptData: the records of a train net in the memory of all workers, on connections of their own, until `close`."""

from __future__ import annotations

from functools import partial

from poseidon.data.memory_share import MemoryShare, spread
from poseidon.data.source import RecordSource
from poseidon.errors import UsageError
from poseidon.net.layers.records import RecordLayer
from poseidon.net.net import Net
from poseidon.run.roundtable import Roundtable
from poseidon.transport import Transport


class KeptData:
    """All workers make it together, when each knows its share."""

    def __init__(self, net: Net, transport: Transport, table: Roundtable) -> None:
        self._layers = [node.layer for node in net.graph.nodes if isinstance(node.layer, RecordLayer)]
        if not self._layers:
            raise UsageError(
                "--data-in-memory keeps the records of Data and ImageData layers, but the train net has none"
            )
        self._endpoint = transport.one_sided()
        self._table = table
        for number, layer in enumerate(self._layers):
            layer.keep(partial(self._spread, number))
        table.meet()  # everybody's records are there

    def _spread(self, number: int, source: RecordSource, is_part: bool) -> MemoryShare:
        return spread(source, self._endpoint, self._table.gather, number=number, is_part=is_part)

    def close(self) -> None:
        for layer in self._layers:
            layer.keep(None)
        self._endpoint.close()
