"""What drafters are in the files of other programs: weights, rotations, tokenizers."""
