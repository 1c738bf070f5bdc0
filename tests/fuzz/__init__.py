"""What is fed with bytes that no peer would send."""
