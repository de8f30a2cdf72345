"""
What users may add to pods, in Kubernetes' names: labels, variables, volumes, sidecars, placement.

`kube.objects.podtemplate` makes the pods. Begin with `template`; `ownership` lists what the operator owns and a
template must not name.
"""
