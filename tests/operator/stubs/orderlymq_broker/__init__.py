"""A stand-in broker process for tests of the local backend; it is found first with this folder's parent on PYTHONPATH."""
