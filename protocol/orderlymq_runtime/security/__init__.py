"""
Protection of connections: TLS, the cluster's secret, and the rule for secrets in the clear.

Nothing here knows commands; accounts and signatures live in `orderlymq_protocol` and in the broker.
Begin with `tls`.
"""
