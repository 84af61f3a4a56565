"""The one door to the clients, what passes it, and what that costs."""
