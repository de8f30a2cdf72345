"""
The order demo: many orders pass through their steps while the leader is killed, and the oracle judges.

Only `orderlymq demo` uses this folder. All processes append to one history, the only source of the verdict. Begin
with `run`, which starts `producer` and `consumer` processes; `orders` says what an order is.
"""
