"""Simulated workers: real roles, bus and store, timed iterations, random tokens; without torch and transformers."""
