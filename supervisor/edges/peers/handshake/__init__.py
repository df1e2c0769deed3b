"""How do the two sides of a connection find out that they are nodes of the same job?"""
