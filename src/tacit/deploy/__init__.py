"""The same methods on real machines: a server, nodes that own their data, and Flower between them."""
