"""
Measures the cost of each layer by itself: frames, the remoting shell, the broker core, the store, this machine.

No whole cluster runs here; the programs one folder above compare those.
Begin with `limits`; each other module is a program of its own.
"""
