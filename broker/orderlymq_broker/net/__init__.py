"""Client connections, the group's address, name-server registration."""
