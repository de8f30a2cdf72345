"""
Additions of users to pods, in Kubernetes' names: labels, variables, volumes, sidecars, places.

No pod is made here (`kube.objects.podtemplate`), and nothing here is the operator's own.
Begin with `template`; `ownership` has what a template must not name.
"""
