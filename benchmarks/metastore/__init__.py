"""What metadata costs as there is more of it: thousands of ledgers, and logs of thousands of ledgers."""
