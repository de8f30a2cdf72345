"""
Actions of an account: each one first shows what it will do, then does it, and stands in the audit log.

Rule: an action does what was shown or nothing. Where the thing has changed since, it is refused and shown again.
Pages that only show something are in `pages`. Begin with `plan.py`.
"""
