"""A run explained in one page: run folders in, one HTML file that needs no network, and figures for a paper."""
