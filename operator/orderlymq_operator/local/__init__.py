"""
The local backend: a cluster as processes on one machine, reconciled by a supervisor.

Nothing here decides what must change (`plan`) or knows of Kubernetes (`kube`).
Begin with `supervisor`: it observes and acts through `backend`; `keeper` keeps one process alive, `control` serves commands.
"""
