"""One file a format: each turns a Comparison into the text of that format."""
