"""
The forecast of a change in Kubernetes, from data of the API server only: no requests are sent to brokers.

`applied` merges a manifest with the existing object, `present` derives an observed state from objects and statuses,
`change` and `using` forecast the effects of manifests, `reader` reads the inputs. Nothing is written here. Begin with
`change.py`.
"""
