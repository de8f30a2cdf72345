"""
Files of manifests: YAML to models, with errors that name file, line and field.

The kinds decide what a manifest may say, not this package.
Begin with `reader`.
"""
