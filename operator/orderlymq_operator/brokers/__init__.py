"""
Requests of the operator to brokers and name servers.

Nothing here knows whether brokers are processes or pods, and nothing here decides; `plan` decides.
Begin with `admin` (one method per request), then `requests` (the actions of a plan as requests).
"""
