"""Training engines: forward, backward and optimizer over sharded weights, on one device thread per rank."""
