"""Agent loops: from a prompt to scored trajectories. No torch."""
