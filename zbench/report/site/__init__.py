"""A static site of all runs: a page of all, a page for each run and each configuration, a feed, a badge."""
