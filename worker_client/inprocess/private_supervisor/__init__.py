"""Which process decides for a rank without a launcher: where is it, how is it started, what replaces it?"""
