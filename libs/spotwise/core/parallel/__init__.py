"""Chooses the parallel configuration that serves a load on the available instances (SpotServe, section 4.1)."""
