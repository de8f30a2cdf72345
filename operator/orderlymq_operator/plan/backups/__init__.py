"""What is decided about backups: when a Job runs, what it said, which are kept.

Pure: no clock, no API server. Begin with `lifecycle`; `retention` says what goes, `report` reads what Jobs say.
"""
