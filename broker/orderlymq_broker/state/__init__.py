"""The replicated state machine: records go in, tables change, outcomes come out. Pure."""
