"""
Actions of an account: each one first shows what it will do, then does it, and is recorded in the audit log.

Rule: an action does exactly what it showed, or nothing. If the object has changed since, the action is refused and shown again.
Pages that only show something are in `pages`. Begin with `plan.py`.
"""
