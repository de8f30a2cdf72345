"""The HTTP pages of every process: health, metrics and status, who may read them, and the metrics of traffic and loop."""
