"""
The kind Cluster and the parts of its spec: settings, console, canary, listeners, network, security.

`pod` has what users may add to pods; the folder above has what other kinds share. Begin with `cluster`; `rollout`
says what a changed field restarts.
"""
