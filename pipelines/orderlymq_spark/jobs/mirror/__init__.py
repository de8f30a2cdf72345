"""
Pipeline mirror: topics of one cluster at another one, offset by offset, with the offsets of groups.

Begin with `job`; `plan` decides what is copied next and where a consumer group begins, and is pure.
"""
