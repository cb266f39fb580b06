"""Plots, charts, pages and notebook output of simulations.

This package takes plain results (`LimitResult`, `Table`) and imports Matplotlib and Altair only
when something is drawn with them.
"""
