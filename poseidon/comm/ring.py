"""RING: every worker gets the sum of all gradients by an all-reduce, and applies the rule itself."""

from __future__ import annotations

from poseidon.comm.exchange import DenseExchange
from poseidon.comm.part import Part
from poseidon.plan import Send
from poseidon.transport import Work


class Ring(DenseExchange):
    def begin(self, send: Send) -> Work:
        return self.transport.all_reduce(self.memory(send), tag=self.tag(send))

    def arrive(self, send: Send, token: Work) -> bool:
        token.wait()
        return True

    def reduced(self, send: Send, token: Work) -> list[Part]:
        return self.parts(send.start, send.stop, self.memory(send))
