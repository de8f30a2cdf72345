"""`python -m orderlymq_operator.canary`: the program in the pod of a canary."""

from orderlymq_operator.canary.command import canary
from orderlymq_runtime.process import logs

if __name__ == "__main__":
    logs.configure("INFO", "text", "canary")
    canary(auto_envvar_prefix=None)
