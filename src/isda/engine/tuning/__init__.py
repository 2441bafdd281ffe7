"""Settings chosen on held-out data: what is tried, in which order, and what is kept of it. It knows no task."""
