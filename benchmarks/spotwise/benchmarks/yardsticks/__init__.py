"""The other servers of `spotwise bench peer`: how they are started, measured and named."""
