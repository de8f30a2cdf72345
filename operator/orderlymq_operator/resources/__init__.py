"""
What a person may write in a manifest: the five kinds, their quantities, conditions, files and CRDs.

Nothing here decides what to do about a manifest (`plan`) or talks to anybody; only `manifests` reads files.
Begin with `kinds`; `cluster`, `topic`, `consumergroup`, `user` and `pipeline` are the kinds themselves.
`pod` has the parts of `podtemplate`, what users add to pods.
"""
