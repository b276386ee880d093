"""A page on this machine: runs as they go on, compared, explained, tried and forgotten."""
