"""Weight sync: from the trainer's shards in memory to the weights of a rollout engine."""
