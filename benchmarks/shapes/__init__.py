"""How costs grow with the number of ledgers, their length, the number of bookies, and the shape of ensembles."""
