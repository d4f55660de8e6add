"""Thin Prefect layer over the library: recording, and the tasks the flows call."""
