"""Kernels written for passes over few rows, each with a plain twin that gives the same numbers."""
