"""What happens if the API server refuses: for rights, admission rules or missing objects."""
