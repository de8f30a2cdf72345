"""
What a Cluster and a Pipeline are as Kubernetes objects.

Pure functions from models to JSON objects; nothing here reads or writes the API server.
Begin with `cluster` (StatefulSets, Services, settings) or `pipeline` (Deployments, Jobs); `names` has all names.
"""
