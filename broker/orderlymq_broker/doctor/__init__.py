"""
The doctor: checks of a replica's directory that read and never repair.

Not here: repairs, and anything that a running broker calls. `state` holds the checks of the state machine's tables, `log`
those of the raft log and the store, `command` the subcommand. Begin with `state`.
"""
