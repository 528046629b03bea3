"""Benchmarks: each measures our figure and its reference in the same run, in interleaved rounds."""
