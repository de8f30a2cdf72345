"""
Manifests in, a running cluster out.

`models` says what a manifest may hold, `manifests` reads files of them, `plan` decides (purely) what must
change, and a backend does it: `local` keeps processes on one machine. The commands stand in `commands`.
This package talks to brokers over the wire and never imports them.
"""
