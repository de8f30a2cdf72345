"""
From manifests to a running cluster, on one machine or on Kubernetes.

`resources` says what a manifest may hold, `plan` decides (purely) what must change, `brokers` talks to brokers, and
`local` or `kube` carries the plan out. The commands are in `commands`; this package never imports the broker.
"""
