"""Python imports this module at the start of every process with this folder in its path: drivers, runners and workers."""

from tests.spark.faults import deadly

deadly.watch()
