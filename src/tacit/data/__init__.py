"""Where interactions come from, how they are split, and how clients are stacked."""
