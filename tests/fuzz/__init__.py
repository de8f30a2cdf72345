"""
Coverage-guided fuzzers of every decoder that reads what others wrote: `python -m tests.fuzz`, or `make fuzz`.

`decoders` says what is fuzzed and which errors are its own; `engine` runs one decoder under atheris; the test beside it
gives every decoder its seeds, and bytes near them, without atheris.
"""
