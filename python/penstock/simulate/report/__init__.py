"""Plots, pages and notebook output of simulations.

It imports Matplotlib only to draw.
"""
