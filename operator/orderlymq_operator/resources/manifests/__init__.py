"""
Files of manifests: YAML to models, with errors that name file, line and field.

The kinds define what a manifest may contain; this package only reads it. Begin with `reader`; `combination` merges
the resources of one cluster.
"""
