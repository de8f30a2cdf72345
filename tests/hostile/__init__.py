"""
A hostile client: requests that no client would send, generated from the tables of the protocol.

`catalogue` observes what each request code reads, and `cases` makes one request from a seed and a number. `inprocess`
gives it to a broker and a name server without sockets, `assault` to real processes. `python -m tests.hostile` runs
both; docs/evidence/hostile.md says how to read a finding.
"""
