"""Objects for backups: Jobs that run `orderlymq backup`, and the pods in which replicas are restored.

Pure. `plan.backups` decides about them. Begin with `job`.
"""
