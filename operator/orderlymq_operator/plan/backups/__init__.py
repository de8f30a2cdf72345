"""Decisions about backups: when a Job runs, its result, which are kept.

Pure: no clock, no API server. Begin with `lifecycle`; `retention` says what goes, `report` reads what Jobs say.
"""
