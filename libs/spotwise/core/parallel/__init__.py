"""Which parallel configuration serves a load on the available instances (SpotServe, section 4.1)."""
