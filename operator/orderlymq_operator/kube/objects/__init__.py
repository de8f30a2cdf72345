"""
Kubernetes objects of a Cluster and a Pipeline.

Pure functions from models to JSON objects; nothing here reads or writes the API server.
Begin with `cluster` (StatefulSets, Services, settings) or `pipeline` (Deployments, Jobs); `names` has all names.
"""
