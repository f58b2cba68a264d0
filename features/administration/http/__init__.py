"""`/v1/admin/…`: what operators change and see, over HTTP, with keys of scope admin.

Every change is `features.administration`'s, as the command line's; knows no query.
"""
