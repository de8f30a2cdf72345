"""An attacker's programs against real processes and sockets: each rule says what a stranger cannot do."""
