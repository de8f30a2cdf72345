"""Forecasts against a world that knows nothing of them."""
