"""
The order canary: a tiny producer and two consumers that check order, delivery and take-over continuously.

`troubles`, `ledger`, `budget` and `verdict` decide and know no clock and no socket; `probes` is the only module that sends.
Begin with `verdict`; `ledger` says what counts as broken order, and `process` joins both to the pages.
"""
