"""The shell around the raft core: turns of persist, send, apply; transport between replicas."""
