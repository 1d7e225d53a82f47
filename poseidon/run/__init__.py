"""Where the parts come together: nets, solvers, plans and workers."""
