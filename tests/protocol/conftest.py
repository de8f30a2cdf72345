"""The time that Hypothesis may take: pytest's own limit decides, a busy machine must not fail a test."""

from hypothesis import HealthCheck, settings

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
