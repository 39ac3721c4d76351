"""replog side by side with what people would use instead: one runner, one small adapter for each system."""
