"""One module per family of requests: they read the state and answer with effects. Pure."""
