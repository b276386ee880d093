"""How results are measured: ranking protocols, metrics, and what they are compared with."""
