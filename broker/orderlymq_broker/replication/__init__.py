"""
The shell around the raft core: group commit, the writer, the transport between replicas, snapshots and housekeeping.

Not here: raft's rules (orderlymq_raft) and what an entry means (state). Begin with `loop`, then `instance`, which
makes one.
"""
