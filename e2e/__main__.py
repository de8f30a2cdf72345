"""
Prepares the environment of the scenarios: ``python -m e2e prepare``, and ``python -m e2e remove`` afterwards.

The scenarios make what is missing themselves. CI prepares while other tests wait, and removes the cluster so
that its idle pods take no CPU from the steps that follow. A cluster that KUBECONFIG names stays.
"""

import os
import sys

from e2e.conftest import NO_KUBERNETES
from e2e.machine import MachineError, find, say
from e2e.space import EXAMPLE_IMAGE


def main(task: str) -> int:
    """Return 0 when it is done, 40 where no Kubernetes can be made."""
    try:
        machine = find()
        if task == "prepare":
            say(f"building {EXAMPLE_IMAGE}")
            machine.build(EXAMPLE_IMAGE)
        elif machine.kind and not os.environ.get("KUBECONFIG"):
            machine.run("kind", "delete", "cluster", "--name", machine.kind)
    except MachineError as error:
        say(str(error))
        return NO_KUBERNETES
    return 0


if __name__ == "__main__":
    if sys.argv[1:] not in (["prepare"], ["remove"]):
        sys.exit("usage: python -m e2e prepare | remove")
    sys.exit(main(sys.argv[1]))
