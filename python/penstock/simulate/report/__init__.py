"""Plots, pages and notebook output of simulations.

This package takes plain results (`LimitResult`, `Table`), and imports Matplotlib only to draw.
"""
