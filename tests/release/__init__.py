"""The distributions hold every package once and ask for what they import."""
