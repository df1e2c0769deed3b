"""How are gRPC calls made and answered in the event loop's thread, without gRPC's library?"""
