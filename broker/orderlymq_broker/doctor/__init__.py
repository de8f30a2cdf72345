"""
The doctor: checks of a replica's directory that read and never repair.

Repairs are not here, nor anything that a running broker calls. `state` checks the tables of the state machine, `log`
checks the raft log and the store, and `command` is the subcommand. Begin with `state`.
"""
