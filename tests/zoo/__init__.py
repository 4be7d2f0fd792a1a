"""A zoo of small models, each with its batches and its loss:
the sample on which limits of the verdict are set.
"""
