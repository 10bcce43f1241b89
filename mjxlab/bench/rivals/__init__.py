"""Scripts that run a rival. Each is started by path with the rival's own Python and imports nothing of mjxlab."""
