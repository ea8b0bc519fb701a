"""`spotwise bench`: what a mesh gives, measured; one file a benchmark, one shape of report for all."""
