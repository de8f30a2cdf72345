"""Access of pipelines to a cluster: retries, limits and slow links."""
