"""
The broker without its sockets: a request goes in, effects come out. Pure.

There is one subpackage per kind of request: ``send``, ``fetch``, ``groups``, ``lanes``, ``schedule``, ``transactions``,
``topics``, ``admin``, ``observe``. No module here touches a socket, a clock or the log. Begin with ``dispatch.py``.
"""
