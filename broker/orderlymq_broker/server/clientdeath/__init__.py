"""
The death of a client on this machine: which process the client is, and the proof that the process is gone.

The operator proves deaths in Kubernetes (``kube/takeover``); ``processors/groups`` decides what a death does to locks.
Begin with ``liveness.py``; ``sockets.py`` finds sockets where there is a /proc, ``portablesockets.py`` elsewhere.
"""
