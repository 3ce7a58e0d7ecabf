"""Measures gomflux, mflux and diffusers on the same shapes, in turn, and writes the tables of docs/performance.md."""
