"""Where the numbers of a run go: console, files, curves."""
