"""
A trace of the slowest sends of one sender: where the time of each went.

`launcher` starts a broker with time stamps around its loop, `client` sends, `phases` combines the stamps, `__main__`
runs it.
"""
