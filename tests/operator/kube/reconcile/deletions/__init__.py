"""Objects, groups and replicas that go, and what holds them."""
