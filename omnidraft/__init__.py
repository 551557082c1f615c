"""OmniDraft: one small draft model makes any local language model answer faster, losslessly."""
