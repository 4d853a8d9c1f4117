"""The proof: real nodes, servers and faults, and a checker that knows nothing of the engine.

``python -m chaos --seconds 60 --nodes 3 --seed 1`` runs it, and docs/explanation/guarantees.md says
what it shows. This package is for people and for CI and is not part of the wheel.
"""
