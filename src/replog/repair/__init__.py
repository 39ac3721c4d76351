"""Repairs as a service: audits again and again, and makes what lacks."""
