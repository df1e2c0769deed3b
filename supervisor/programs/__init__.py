"""Which programs run beside a supervisor, in processes of their own?"""
