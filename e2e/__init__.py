"""End-to-end scenarios on a real Kubernetes: what a user sees, checked by the order oracle. `make e2e` runs them."""
