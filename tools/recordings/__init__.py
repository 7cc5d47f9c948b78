"""`make recordings` sends recorded requests to our servers and to local ones, and compares the answers."""
