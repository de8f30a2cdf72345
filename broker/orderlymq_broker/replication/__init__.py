"""
The shell around the raft core: group commit, the writer, the room `transport`, snapshots and compaction.

Not here: raft's rules (orderlymq_raft) and what an entry means (state). Begin with `loop`, then `replicainstance`, which
makes one.
"""
