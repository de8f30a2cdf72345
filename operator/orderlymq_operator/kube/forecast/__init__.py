"""
The forecast of a change in Kubernetes, from data of the API server only: no requests are sent to brokers.

Begin with `change` and `using`, which forecast the effects of manifests. `applied` merges a manifest with its object,
`present` derives an observed state from objects and statuses, `reader` reads the inputs. Nothing is written here.
"""
