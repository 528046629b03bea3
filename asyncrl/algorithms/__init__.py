"""The mathematics of training: tensors in, new tensors out; no I/O, no configuration object but small ones of its own.

Legend: ``N`` rows (trajectories), ``R`` response columns, ``T`` packed tokens, ``V`` vocabulary. A ``response_mask`` is
1 for a token that the policy sampled and 0 for an observation or padding; what lies under a 0 may be NaN or infinite and
reaches neither a value nor a gradient. Log-probs are natural logarithms. float64 goes in, float64 comes out.
"""
