"""Wire dialects over the one gateway: each turns a body into a request, and a response into a body or events."""
