"""
A deterministic simulator of a broker group with its producers and ordered consumers.

The cores are the real ones: raft, replication loop, state machine, processors, the router for clients, the SDK's
ordered consumer and its wire. Everything around them (time, network, disks, processes) is simulated on one seeded
queue of events, so a seed always gives the same run, byte for byte. ``python -m tests.sim --seed N`` runs one;
``world.py`` assembles the parts.
"""
