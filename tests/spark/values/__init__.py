"""Bodies that follow a schema."""
