"""Locations of files, on a file system and in an object store."""
