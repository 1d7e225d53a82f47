"""Training by notified puts (the pattern `gpi`): no barriers, no operations that workers have to start together."""
