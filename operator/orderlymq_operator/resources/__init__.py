"""
Manifests: the kinds, their quantities, their conditions, files of them, and the CRDs.

This package makes no decisions about manifests (`plan` does); only `manifests` reads files. Begin with `kinds`; the
modules `cluster.cluster`, `topic`, `consumergroup`, `user` and `pipelines.pipeline` define kinds.
"""
