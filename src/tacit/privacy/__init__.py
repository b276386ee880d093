"""Privacy that can be stated: mechanisms and what they cost."""
