"""
The push consumer around its core: start and end, calls to brokers and requests from them.

`core` and `lanes` decide what is consumed next, never this package.
Begin with `consumer`; `executor` carries out what the core says.
"""
