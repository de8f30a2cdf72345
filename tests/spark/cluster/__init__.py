"""How the pipelines use a cluster."""
