"""
Manifests: the kinds, their quantities, their conditions, files of them, and the CRDs.

Nothing here decides what to do about a manifest (`plan`) or talks to anybody; only `manifests` reads files.
Begin with `kinds`; `cluster.cluster`, `topic`, `consumergroup`, `user` and `pipelines.pipeline` are kinds themselves.
"""
