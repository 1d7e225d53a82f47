"""Bounded staleness: tables whose readers may be a few clocks behind, and the training that is built on them.

protocol.py   who may read what, when: pure state machines
layout.py     which rows of a table are whose
message.py    what workers and servers tell each other, as bytes
outgoing.py   which message leaves next (where a message scheduler is plugged in)
mailbox.py    messages over notified puts
shard.py      a server's part of a table
cache.py      a worker's copy of a table
hub.py        the thread that connects all of these
table.py      poseidon.Table
"""
