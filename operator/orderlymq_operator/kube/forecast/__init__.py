"""
The forecast of a change in Kubernetes, from the answers of the API server: no broker is asked.

`applied` merges a manifest with the object that it is applied over, `present` makes an observed state of objects and
statuses, `change` puts manifests over it and forecasts, `reader` reads what these need. Nothing is written here. Begin
with `change.py`.
"""
