"""
Other libraries on top of OrderlyMQ, each an extra of the SDK: `orderlymq[faststream]`, `orderlymq[taskiq]`.

Rule: no other module of the SDK imports this folder. Begin with `taskiq.py`, or with `faststream/broker.py`.
"""
