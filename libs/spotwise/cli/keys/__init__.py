"""`spotwise keys`: API keys of a mesh."""
