"""Task samplers: which row each draw takes."""
