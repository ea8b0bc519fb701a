"""Weights that processes have from one another."""
