"""
The order demo: many orders live through their steps while the leader is killed, and the oracle judges.

Nothing but `orderlymq demo` uses this folder; all processes append to one history, the only source of the verdict.
Begin with `run`, which starts `producer` and `consumer` processes; `orders` says what an order is.
"""
