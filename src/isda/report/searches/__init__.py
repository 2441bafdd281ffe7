"""What `isda tune` leaves, in words, tables and charts: every search that is found beside the runs."""
