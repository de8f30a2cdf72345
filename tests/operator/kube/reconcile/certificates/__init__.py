"""Certificates between replicas, and the order in which TLS is switched on and off."""
