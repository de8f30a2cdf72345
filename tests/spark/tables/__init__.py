"""Archives and Delta tables."""
