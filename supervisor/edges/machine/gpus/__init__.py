"""What do the GPUs of this node report about themselves?"""
