"""The gradients column of the stage table: the life of a bucket, its memory, the rank sums, the norm."""
