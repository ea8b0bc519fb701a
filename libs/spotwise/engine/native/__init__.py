"""Kernels in C++ for the CPU, called through ctypes; without a compiler the engine computes with torch alone."""
