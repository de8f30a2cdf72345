"""
Headers: the typed fields that a request or a response carries in addition to its body.

Not here: bodies, and the bytes of the header itself (frame). `declaration` says how a header is declared; `catalogue`
gathers all of them; `send` and `pull` hold the hot ones. Begin with `declaration.py`.
"""
