"""Finding and making missing copies: audits, repairs, drains, losses, and a service that repairs (F1-F6, B8a, W8)."""
