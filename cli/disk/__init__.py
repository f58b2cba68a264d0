"""Files of the user: inputs read and checked, outputs written whole or not at all.

Knows no batch on a server.
"""
