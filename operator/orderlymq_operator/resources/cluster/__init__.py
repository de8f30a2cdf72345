"""
The kind Cluster and the parts of its spec: settings, console, canary, listeners, network, security.

What a pod may have besides is in `pod`, what is shared with other kinds one folder above.
Begin with `cluster`; `rollout` says what a changed field restarts.
"""
