"""
The shell around the raft core: group commit, the writer, the package `transport`, snapshots and compaction.

Raft's rules are in orderlymq_raft, the effects of an applied entry in `state`, and the snapshot of a store in
`store`. Begin with `loop`, then `replicainstance`, which builds it.
"""
