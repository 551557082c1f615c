"""Hostile files: each module gives bytes to what opens a format, as if they were a file of it.

A module has ``check``, which takes any bytes. It returns where the file was opened or refused with
an ``OmniDraftError``; anything else that it raises is a finding.
"""
