"""Forecasts, compared with what then happens in a small world that does not know them."""
