"""`spotwise simulate`: a cluster in simulated time; one file a question."""
