"""`python -m orderlymq_operator.canary`: what the pod of a canary runs."""

from orderlymq_operator.canary.command import canary
from orderlymq_runtime.process import logs

if __name__ == "__main__":
    logs.configure("INFO", "text", "canary")
    canary(auto_envvar_prefix=None)
