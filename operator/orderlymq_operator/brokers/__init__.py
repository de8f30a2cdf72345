"""
Requests of the operator to brokers and name servers.

This package does not know whether brokers are processes or pods, and decides nothing; `plan` decides. Begin with
`admin` (one method per request), then `requests` (the actions of a plan as requests).
"""
