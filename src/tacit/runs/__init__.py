"""A run is a folder: how it is started, recorded, resumed, read and reported."""
