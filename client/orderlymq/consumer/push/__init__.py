"""
The push consumer around its core: start and end, rebalance, calls to brokers and requests from them.

What is consumed next is decided in `core` and `lanes`, never here.
Begin with `consumer`; `executor` carries out what the core says.
"""
