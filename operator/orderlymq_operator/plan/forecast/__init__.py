"""
What a change will do before it is made: the planner's steps on an ideal cluster, and what they mean for each resource.

`ideal` carries actions out without processes, `forecast` runs the planner on it, `consequences` says what the steps
mean. Nothing is asked of brokers or Kubernetes here. Begin with `forecast.py`.
"""
