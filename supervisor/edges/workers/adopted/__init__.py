"""How are ranks watched that another launcher has started?"""
