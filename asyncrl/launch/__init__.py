"""``torchrun … -m asyncrl.launch config=NAME key=value …``: load the configuration, join the group, take roles."""
