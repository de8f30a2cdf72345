"""Programs of attackers: each succeeded once and fails now."""
