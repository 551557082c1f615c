"""Makes drafters: text of one or several teachers, learned by a small Llama.

A drafter's folder comes from a configuration (``config``) by steps (``run``) that each leave whole
files behind, so that whatever stopped goes on where it was:

- ``sampling``: teachers write conversations, with the probabilities of what they might have
  written;
- ``shards``: how these lie on the disk;
- ``spellings``, ``documents``: the same text in the drafter's tokens, with labels;
- ``network``, ``grid``, ``losses``, ``training``: the drafter learns;
- ``packing``: its vocabulary in order of use, its weights in 8 bits;
- ``evaluation``, ``card``: what it is worth, and what it is made of.
"""
