"""What files of other tools mean here: one file a tool, which holds the table of its keys."""
