"""
Measures the cost of each layer by itself: frames, the remoting shell, the broker core, the store, this machine.

No complete cluster runs here; the programs in the parent folder compare clusters.
Begin with `limits`; each other module is a program of its own.
"""
