"""
Forecast of a change: the planner's steps on an ideal cluster, and their meaning for each resource.

`ideal` carries actions out without processes, `forecast` runs the planner on it, `consequences` says what the steps
mean. Nothing is asked of brokers or Kubernetes here. Begin with `forecast.py`.
"""
