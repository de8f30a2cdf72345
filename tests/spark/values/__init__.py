"""Bodies by a schema."""
