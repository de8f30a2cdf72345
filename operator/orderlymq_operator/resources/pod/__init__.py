"""The parts of `podtemplate`: what users add to pods."""
