"""The revisions of the schema, one tree for all databases."""

from __future__ import annotations
