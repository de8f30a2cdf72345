"""Programs of attackers: each attack succeeded once and fails now."""
