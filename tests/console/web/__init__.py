"""Whom the console admits, viewers that follow a page, and how pages look in a real browser."""
