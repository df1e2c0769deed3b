"""Which process decides for a rank without a supervising launcher: where is it, how is it started and replaced?"""
