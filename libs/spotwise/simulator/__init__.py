"""The simulator: the roles of the mesh in a world of discrete events; what goes in, what comes out, what it shows."""
