"""The developers' benchmarks: commands of `spotwise bench` in a checkout, not part of the wheel."""
