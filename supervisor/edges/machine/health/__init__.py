"""Is this node healthy, as far as its own services and devices can tell?"""
