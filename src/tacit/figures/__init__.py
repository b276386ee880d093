"""Figures: run folders in, specifications as plain JSON out, which one function draws for report, studio and documents.

Nothing here imports torch, so that a thousand runs are listed before it would be loaded; `papers` alone does.
"""
