"""The ledger room: what happened, provably, and nothing missing.

A call's number is reserved on the board before anything can fail, its record is appended to a
journal before the reply, and the sequencer, another process under another key, forms the entry,
grows the tree and signs the checkpoint. Every order of writes is explained once, where it is made:
``recorder`` (board, journal), ``sequencer`` (plan, vault, tiles, commit, publication, followers).
"""
