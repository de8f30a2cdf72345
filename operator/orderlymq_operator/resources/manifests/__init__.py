"""
Files of manifests: YAML to models, with errors that name file, line and field.

What a manifest may say is decided by the kinds, not here.
Begin with `reader`.
"""
