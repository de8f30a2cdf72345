"""The console: what it asks, what it shows, whom it lets in, and how it looks in a real browser."""
