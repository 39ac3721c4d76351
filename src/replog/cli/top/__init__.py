"""`replog top`: a cluster as it is now. The model is pure: it turns answers of bookies into rates; others poll and draw."""
