"""
Decisions about backups: when a Job runs, its result, and which backups are kept.

Pure: no clock, no API server. Begin with `lifecycle`; `retention` says which go, `report` parses the reports of Jobs.
"""
