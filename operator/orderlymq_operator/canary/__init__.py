"""
The order canary: a small producer and two consumers that check order, delivery and take-over continuously.

`troubles`, `ledger`, `budget` and `verdict` decide, without clock or socket; only `probes` sends. Begin with
`verdict`; `ledger` says what counts as broken order, and `process` connects both to the HTTP pages.
"""
