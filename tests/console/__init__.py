"""The console: what it asks brokers, what it shows, who may use it, and how it looks in a real browser."""
