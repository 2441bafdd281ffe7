"""What data sets look like on disk: one file per layout."""
