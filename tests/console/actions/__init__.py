"""What the console does for an account: each action is shown before it is done."""
