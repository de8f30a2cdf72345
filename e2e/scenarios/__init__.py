"""One scenario per file."""
