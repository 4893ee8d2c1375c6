"""HTML pages and figures."""
