"""
Coverage-guided fuzzers of every decoder that reads foreign bytes: `python -m tests.fuzz`, or `make fuzz`.

`decoders` lists what is fuzzed and which errors are allowed; `engine` runs one decoder under atheris. The test in
this folder gives every decoder its seeds, and bytes near them, without atheris.
"""
