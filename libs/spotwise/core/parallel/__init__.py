"""Which parallel configuration serves a load on what can be had (SpotServe, section 4.1)."""
