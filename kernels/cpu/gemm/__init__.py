"""Matrix products in bf16 over weights in panels of columns, by the unit of the CPU that is asked for.

Knows the layout and the units, no layer and no model.
"""
