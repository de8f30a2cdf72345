"""
The local backend: a cluster as processes on one machine, kept in order by a supervisor.

`directory` is what stands on disk, `keeper` keeps one process alive, `backend` carries out actions, `observation`
looks, `supervisor` asks the planner and does what it says, `control` lets commands talk to it.
"""
