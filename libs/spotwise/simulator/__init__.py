"""The simulator: discrete-event simulation of the mesh's roles, with its workloads, results and figures."""
