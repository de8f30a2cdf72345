"""Killed processes, full disks, lost leaders; `kills` is the campaign."""
