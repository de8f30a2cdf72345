"""One story per file."""
