"""Webhooks: who is told of what at which URL, what is to be sent, and the sending itself.

Knows no batch and no API: an event is a type and a few ids. Signatures are those of Standard Webhooks.
"""
