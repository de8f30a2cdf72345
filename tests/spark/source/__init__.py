"""Reading topics."""
