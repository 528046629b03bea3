"""The loop and its parts: feeder, ledger, replay buffer, stages, validation, report."""
