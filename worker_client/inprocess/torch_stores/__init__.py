"""How does one of torch's stores get our names, our barriers and a limit on each wait?"""
