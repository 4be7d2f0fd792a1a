"""Other engines behind the built-in one's small protocol, so that a sweep may compare and verify them."""
