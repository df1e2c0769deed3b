"""What do the GPUs of this node say of themselves?"""
