"""The use that pipelines make of a cluster."""
