"""The TransferQueue: rows that grow fields over time, kept by sharded actors and pushed to whoever watches."""
