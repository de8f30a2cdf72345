"""What each page shows, and how many questions it costs the brokers."""
