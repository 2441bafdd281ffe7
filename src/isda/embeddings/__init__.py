"""Embeddings: features of images by a network, and tables of features with labels, in files."""

from isda.embeddings.embedding import Embedded, embed
from isda.embeddings.rows import Rows
from isda.embeddings.tables import Tables, read_tables

__all__ = ["Embedded", "Rows", "Tables", "embed", "read_tables"]
