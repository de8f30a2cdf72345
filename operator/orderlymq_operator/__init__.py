"""
From manifests to a running cluster, on one machine or on Kubernetes.

`resources` says what a manifest may hold, `plan` decides (purely) what must change, `brokers` talks to brokers, and
`local` or `kube` carries the plan out. This package never imports the broker.
Begin with `commands.py` for a machine, with `kube/app.py` for Kubernetes.
"""
