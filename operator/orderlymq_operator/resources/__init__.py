"""
What a person may write in a manifest: the five kinds, their quantities, conditions, files and CRDs.

Nothing here decides what to do about a manifest (`plan`) or talks to anybody; only `manifests` reads files.
Begin with `kinds`; `cluster`, `topic`, `consumergroup`, `user` and `pipelines.pipeline` are the kinds themselves.
`pod` has what users add to pods, `pipelines` what they say of pipelines.
"""
