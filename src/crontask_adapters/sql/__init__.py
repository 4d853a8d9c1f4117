"""The store on SQLite, MariaDB and MySQL: one schema, one set of functions (DESIGN 5)."""

from __future__ import annotations
