"""`spotwise plan`: what a change of the parallel configuration moves, in which order, and how long it takes."""
