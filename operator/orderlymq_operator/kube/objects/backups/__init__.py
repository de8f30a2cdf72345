"""What is made for backups: Jobs that run `orderlymq backup`, and the pods in which replicas are restored.

Pure. What is decided about them is in `plan.backups`. Begin with `job`.
"""
