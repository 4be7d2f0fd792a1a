"""Other engines with the interface of the built-in one, so that a sweep can compare and verify them."""
