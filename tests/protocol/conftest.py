"""Switch off the time limits of Hypothesis: pytest's own limit decides, so that a busy machine fails no test."""

from hypothesis import HealthCheck, settings

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
