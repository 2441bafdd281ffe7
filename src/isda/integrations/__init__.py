"""Integrations with training libraries, one module per library; each library is imported with its module only."""
