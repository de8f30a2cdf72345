"""
The local backend: a cluster as processes on one machine, reconciled by a supervisor.

`plan` decides what must change; `kube` deals with Kubernetes. Begin with `supervisor`, which observes and acts
through `backend`; `keeper` keeps one process alive, `control` serves commands.
"""
