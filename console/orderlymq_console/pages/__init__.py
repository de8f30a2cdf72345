"""
The pages as models: what is asked for each page, and how the answers become rows, sums and sentences.

Each function takes the reader and the parameters of the request, and returns a model. Begin with `overview.py`.
"""
