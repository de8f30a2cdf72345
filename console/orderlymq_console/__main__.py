"""Run the console alone: ``python -m orderlymq_console``."""

from orderlymq_console.command import console

if __name__ == "__main__":
    console(prog_name="orderlymq console")
