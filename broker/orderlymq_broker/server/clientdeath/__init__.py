"""
The death of a client on this machine: which process it is, and the proof that it is gone.

A death in Kubernetes is proven by the operator (``kube/takeover``); what a death does to locks is in ``processors/groups``.
Begin with ``liveness.py``; ``sockets.py`` looks where there is a /proc, ``portablesockets.py`` elsewhere.
"""
