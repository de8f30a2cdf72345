"""A broker process for tests of the local backend; found first when this folder's parent is on PYTHONPATH."""
