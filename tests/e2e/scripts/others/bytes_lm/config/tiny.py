# pyright: basic
# executed by configurator.py

device = "cpu"
backend = "gloo"
compile = False
width = 16
block_size = 8
save_interval = 4
