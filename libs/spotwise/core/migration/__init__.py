"""Plans a change of configuration: the device of each position, and the order of transfers (SpotServe, sections 4.2 and
4.3)."""
