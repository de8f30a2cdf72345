"""
Kubernetes objects of a Cluster, a Pipeline and a Backup.

Pure functions from models to JSON objects; nothing here reads or writes the API server.
Begin with `cluster` (StatefulSets, Services, settings) or `pipeline` (StatefulSets, Jobs); `names` has all names.
"""
