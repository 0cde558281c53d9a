"""What a whole run of the tests shares: servers, a parent of processes, budgets, an order."""
