"""Whom the console lets in, viewers that follow a page, and how pages look in a real browser."""
