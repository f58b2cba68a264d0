"""`/v1/admin/…`: administration over HTTP, with keys of scope admin.

Every change goes through `features.administration`, as on the command line.
"""
