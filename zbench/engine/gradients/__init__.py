"""The gradients column of the stage table: bucket buffers, their reduction, and the reduced gradients."""
