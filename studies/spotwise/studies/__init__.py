"""The figures of three papers, measured again in the simulator: the commands of `spotwise simulate paper` in a checkout."""
