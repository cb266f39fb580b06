"""What people see of a simulation: figures, charts, pages, and small tables with a line of traffic.

Nothing of it decides; everything counts what was decided. Matplotlib and Altair are imported where
something is drawn with them.
"""
