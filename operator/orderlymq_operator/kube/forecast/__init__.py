"""
The forecast of a change in Kubernetes, from what the API server tells: no broker is asked.

`present` makes an observed state of objects and statuses, `change` puts manifests over it and forecasts, `reader` reads
what both need.
"""
