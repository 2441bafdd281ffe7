"""Integrations with training libraries, one module for each; a library is imported with its module only."""
