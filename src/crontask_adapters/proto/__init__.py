"""Our messages for owners of batch jobs, and the code generated from them (``make proto``)."""

from __future__ import annotations
