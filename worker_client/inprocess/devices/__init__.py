"""What does this process know about its GPU and network card, without importing torch?"""
