"""
Forecast of a change: the planner's steps on an ideal cluster, and their meaning for each resource.

`ideal` carries actions out without processes, `forecast` runs the planner on it, `consequences` puts the steps into
sentences. The forecast asks neither brokers nor Kubernetes. Begin with `forecast.py`.
"""
