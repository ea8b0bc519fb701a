"""`spotwise bench`: measurements of a mesh; one file a benchmark, one report format for all."""
