"""The optimizer column of the stage table: master weights, moments, and when Adam updates them."""
