"""Bounded staleness: tables whose readers may be a few clocks behind, and the training that is built on them.

    protocol.py    who may read what, when: pure state machines
    layout.py      which rows of a table are whose
    message.py     what workers and servers tell each other, as bytes;   forms.py   what is in them
    outgoing.py    which message leaves next (where a message scheduler is plugged in)
    mailbox.py     messages over notified puts
    shard.py       a server's part of a table
    cache.py       a worker's copy of a table
    hub.py         the thread that connects all of these
    table.py       poseidon.Table

A net is put on tables by `units.py` (its parameters) and `scheduler.py` (its exchanges). In managed mode, where rows
leave when there is room for them, `lazy.py`, `lazy_shard.py`, `row_units.py` and `managed.py` take their places.
"""
