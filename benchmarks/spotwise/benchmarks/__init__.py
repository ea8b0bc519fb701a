"""Benchmarks of a checkout, not part of the wheel: commands of `spotwise bench`, those for developers in its group `dev`."""
