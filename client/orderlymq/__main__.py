"""`python -m orderlymq` is the `orderlymq` command."""

from orderlymq.cli import main

if __name__ == "__main__":
    main()
