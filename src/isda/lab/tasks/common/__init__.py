"""Code shared by several tasks: dry run, batches, metrics, and the options of ISDA."""
