"""Succession of masters: who may take over, and when. Decides only; see docs/adr/0091."""
