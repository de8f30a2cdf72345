"""What each page shows, and what it costs the brokers."""
