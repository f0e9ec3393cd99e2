"""One file format of page vectors per module."""
