"""Python imports this at the start of every process whose path has this folder: drivers, runners and workers alike."""

from tests.spark.faults import deadly

deadly.watch()
