"""`replog top`: a cluster as it is now. The model is pure: what bookies said becomes rates; others poll, and others draw."""
