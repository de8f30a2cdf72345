"""Actions in the console: each one is previewed before an account can do it."""
