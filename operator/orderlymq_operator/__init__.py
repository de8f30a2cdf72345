"""
From manifests to a running cluster, on one machine or on Kubernetes.

`resources` defines the manifests, `plan` decides (purely) what must change, `brokers` talks to brokers, `local` or
`kube` carries the plan out. This package never imports the broker. Begin with `commands.py`, or for Kubernetes with
`kube/app.py`.
"""
