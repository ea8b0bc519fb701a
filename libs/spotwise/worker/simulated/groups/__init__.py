"""Simulated groups: real devices of the mesh, many to a process, whose parts of a model only take the time."""
