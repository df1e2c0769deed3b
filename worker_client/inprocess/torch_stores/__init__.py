"""How does one of torch's stores get our names, our barriers and a bound on each wait?"""
