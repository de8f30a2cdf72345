"""
Certificates that identify the processes of a Cluster to each other: one authority per Cluster, and what it signs.

Begin with `schedule`, which decides what to make and when. `authority` makes it, `objects.certificates` the Secrets.
"""
