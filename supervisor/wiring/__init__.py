"""Which thing gets which: one file constructs what one program is made of."""
