"""End-to-end scenarios on a real Kubernetes: what a user sees, judged by the order oracle. `make e2e` runs them."""
