"""What the engine costs, measured: `make bench`."""
