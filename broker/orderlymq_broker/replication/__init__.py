"""
The shell around the raft core: group commit, the writer, the room `transport`, snapshots and compaction.

Not here: raft's rules (orderlymq_raft), what an entry does when it is applied (state), and how a snapshot is made of a store
(store). Begin with `loop`, then `replicainstance`, which makes one.
"""
