"""The simulator compiled to machine code by mypyc, from the sources that the mesh runs (docs/adr/0050)."""
