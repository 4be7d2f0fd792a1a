"""The speculative schedule: optimizer updates during backward, validated after it."""
