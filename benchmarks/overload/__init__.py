"""What one healthy writer still gets from a bookie while many clients ask for much and take nothing (B9)."""
