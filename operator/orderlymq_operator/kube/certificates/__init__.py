"""
The certificates by which the processes of a Cluster know each other: an authority per Cluster, and what it signs.

Begin with `schedule`, which decides what is made and when; `authority` makes it, `store` keeps it in Secrets.
"""
