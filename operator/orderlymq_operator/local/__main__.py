"""
A supervisor in a process of its own: `python -m orderlymq_operator.local --data-dir DIR`.

It goes on with what stands in the directory; `orderlymq up --detach` starts it.
"""

import argparse
import sys
from pathlib import Path

from orderlymq_operator.local.directory import DataDirectory
from orderlymq_operator.local.errors import LocalError
from orderlymq_operator.local.session import prepared, supervise
from orderlymq_operator.local.supervisor import Supervisor
from orderlymq_runtime.process import logs, loop


def main() -> int:
    """Supervise until a signal or `orderlymq down`; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m orderlymq_operator.local")
    parser.add_argument("--data-dir", type=Path, required=True)
    directory = DataDirectory(parser.parse_args().data_dir)
    logs.configure("INFO", "text", "supervisor")
    try:
        with prepared(directory, []) as state:

            async def supervised() -> None:
                await supervise(Supervisor(directory, state), directory)

            return loop.run(supervised())
    except LocalError as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
